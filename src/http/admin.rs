//! Who may change something: whoever knows the token in a file.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::{fs, io, mem};

use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::text;

/// The token, as the file says now.
#[derive(Debug, Default)]
pub struct Admin {
    file: Option<PathBuf>,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    /// Its digest as last read: a file that is being written keeps nobody out.
    digest: Option<[u8; 32]>,
    /// Whether the file gave none when it was read last, which is told once.
    bad: bool,
}

/// Why a file gives no token.
#[derive(Debug, thiserror::Error)]
pub enum BadToken {
    /// It cannot be read.
    #[error("the admin token cannot be read from {0}")]
    Unreadable(PathBuf, #[source] io::Error),
    /// It is empty.
    #[error("there is no admin token in {0}")]
    Empty(PathBuf),
}

/// What a call wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    /// To see what needs the token when there is one.
    Read,
    /// To change something.
    Change,
}

impl Admin {
    /// The token in that file, which is read again at each call; without a file nobody may change anything.
    ///
    /// # Errors
    /// When there is none in it now.
    pub fn new(file: Option<PathBuf>) -> Result<Self, BadToken> {
        let digest = file
            .as_ref()
            .map(|file| token(file, fs::read(file)))
            .transpose()?;
        let last = Mutex::new(Last { digest, bad: false });
        Ok(Self { file, last })
    }

    /// Whether anybody may change something.
    pub(super) fn is_on(&self) -> bool {
        self.file.is_some()
    }

    /// What to answer a call that may not be made.
    pub(super) async fn refusal(&self, headers: &HeaderMap, wants: Wants) -> Option<Response> {
        let Some(file) = &self.file else {
            let why = "nothing can be changed here: the service was started without --admin-token-file\n";
            return (wants == Wants::Change).then(|| text(StatusCode::FORBIDDEN, why));
        };
        // Digests, for they are of one length: the time says nothing about the token's.
        let same = match bearer(headers).map(digest) {
            Some(given) => self
                .expected(file)
                .await
                .is_some_and(|expected| expected.ct_eq(&given).into()),
            None => false,
        };
        if same {
            return None;
        }
        let mut refused = text(
            StatusCode::UNAUTHORIZED,
            "needs `Authorization: Bearer TOKEN`, with the token of --admin-token-file\n",
        );
        let scheme = HeaderValue::from_static("Bearer");
        refused.headers_mut().insert(WWW_AUTHENTICATE, scheme);
        Some(refused)
    }

    async fn expected(&self, file: &Path) -> Option<[u8; 32]> {
        let read = token(file, tokio::fs::read(file).await);
        let mut last = self.last.lock();
        let was_bad = mem::replace(&mut last.bad, read.is_err());
        match read {
            Ok(digest) => {
                last.digest = Some(digest);
                if was_bad {
                    tracing::info!("the admin token can be read again");
                }
            }
            Err(error) if !was_bad => {
                let cause = error.source().map(ToString::to_string);
                tracing::warn!(%error, cause, "the last admin token counts");
            }
            Err(_) => {}
        }
        last.digest
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

fn token(file: &Path, read: io::Result<Vec<u8>>) -> Result<[u8; 32], BadToken> {
    let text = read.map_err(|error| BadToken::Unreadable(file.into(), error))?;
    match text.trim_ascii() {
        [] => Err(BadToken::Empty(file.into())),
        token => Ok(digest(token)),
    }
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn status(admin: &Admin, authorization: Option<&str>, wants: Wants) -> Option<u16> {
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert(AUTHORIZATION, value.parse().unwrap());
        }
        admin.refusal(&headers, wants).await.map(|r| r.status().as_u16())
    }

    #[tokio::test]
    async fn without_a_file_all_may_read_and_nobody_may_change() {
        let admin = Admin::new(None).unwrap();
        assert_eq!(status(&admin, None, Wants::Read).await, None);
        assert_eq!(status(&admin, None, Wants::Change).await, Some(403));
        assert_eq!(status(&admin, Some("Bearer x"), Wants::Change).await, Some(403));
    }

    #[tokio::test]
    async fn the_token_is_that_of_the_file_now() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        assert!(matches!(
            Admin::new(Some(file.clone())),
            Err(BadToken::Unreadable(..))
        ));
        fs::write(&file, "\n").unwrap();
        assert!(matches!(Admin::new(Some(file.clone())), Err(BadToken::Empty(_))));
        fs::write(&file, "first\n").unwrap();
        let admin = Admin::new(Some(file.clone())).unwrap();
        for wants in [Wants::Read, Wants::Change] {
            for (header, refused) in [
                (None, Some(401)),
                (Some(""), Some(401)),
                (Some("Bearer"), Some(401)),
                (Some("Bearer "), Some(401)),
                (Some("Bearer firs"), Some(401)),
                (Some("Bearer first2"), Some(401)),
                (Some("Basic first"), Some(401)),
                (Some("first"), Some(401)),
                (Some("Bearer first"), None),
                (Some("bearer  first"), None),
            ] {
                assert_eq!(status(&admin, header, wants).await, refused, "{header:?}");
            }
        }
        fs::write(&file, "second").unwrap();
        assert_eq!(
            status(&admin, Some("Bearer first"), Wants::Change).await,
            Some(401)
        );
        assert_eq!(status(&admin, Some("Bearer second"), Wants::Change).await, None);
        // Rotated by hand: for a moment it is empty, or not there.
        fs::write(&file, "").unwrap();
        assert_eq!(status(&admin, Some("Bearer second"), Wants::Change).await, None);
        assert!(admin.last.lock().bad);
        fs::remove_file(&file).unwrap();
        assert_eq!(status(&admin, Some("Bearer second"), Wants::Change).await, None);
        assert_eq!(
            status(&admin, Some("Bearer first"), Wants::Change).await,
            Some(401)
        );
        fs::write(&file, "third").unwrap();
        // Who gives none is refused without a look at the file.
        assert_eq!(status(&admin, None, Wants::Read).await, Some(401));
        assert!(admin.last.lock().bad);
        assert_eq!(status(&admin, Some("Bearer third"), Wants::Read).await, None);
        assert!(!admin.last.lock().bad);
    }
}
