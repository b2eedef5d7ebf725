//! A real Chromium without a window, told what to do over the DevTools protocol.
//!
//! The protocol comes through two pipes, so no port is opened and no library needed: a message is JSON and a
//! zero byte. The browser can reach nothing but this machine.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use cota::clock::Stopwatch;
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long anything may take that should happen at once, on a machine that does other things.
const PATIENCE: Duration = Duration::from_secs(40);

/// Told to each new page first: what its policy forbade is noted.
const NOTE_VIOLATIONS: &str = "window.violations = [];
    addEventListener('securitypolicyviolation', e => window.violations.push(e.violatedDirective + ' ' + e.blockedURI));";

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: Option<String>,
    messages: u64,
    /// The addresses that were asked for.
    asked: Vec<String>,
    /// What scripts complained of.
    complaints: Vec<String>,
    _folder: TempDir,
}

impl Browser {
    /// Opens one, with a window that wide and high.
    pub(crate) fn open(width: u32, height: u32) -> Self {
        let found = Command::new("chromium").arg("--version").output();
        assert!(found.is_ok(), "chromium is missing: `make setup` installs it");
        let folder = tempfile::tempdir().unwrap();
        // Its pipes have the numbers 3 and 4.
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "exec 3<&0 4>&1 </dev/null >/dev/null 2>&1; exec chromium \"$@\"",
            "sh",
        ]);
        command.args([
            "--headless=new",
            "--remote-debugging-pipe",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-default-apps",
            "--disable-extensions",
            "--disable-sync",
            "--no-first-run",
            "--no-proxy-server",
            "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ]);
        // As root it has no sandbox; it sees pages of ours only.
        command.arg("--no-sandbox");
        command.arg(format!("--user-data-dir={}", folder.path().display()));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, from) = channel();
        thread::spawn(move || {
            let messages = BufReader::new(out).split(0).map_while(Result::ok);
            for message in messages {
                let Ok(message) = serde_json::from_slice(&message) else {
                    return;
                };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            child,
            to,
            from,
            session: None,
            messages: 0,
            asked: Vec::new(),
            complaints: Vec::new(),
            _folder: folder,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.call(
            "Target.attachToTarget",
            json!({"targetId": target, "flatten": true}),
        );
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Network", "Runtime"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.call(
            "Page.addScriptToEvaluateOnNewDocument",
            json!({"source": NOTE_VIOLATIONS}),
        );
        browser.resize(width, height);
        browser
    }

    /// Gives the page another size; a narrow one is a phone's.
    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// `dark` or `light`.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let feature = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", feature);
    }

    /// Whether pages may run scripts.
    pub(crate) fn allow_scripts(&mut self, allowed: bool) {
        self.call("Emulation.setScriptExecutionDisabled", json!({"value": !allowed}));
    }

    /// Opens an address and waits until the page is there.
    pub(crate) fn go(&mut self, url: &str) {
        let navigated = self.call("Page.navigate", json!({"url": url}));
        assert!(navigated["errorText"].is_null(), "{navigated}");
        let there = format!(
            "location.href.startsWith({}) && document.readyState == 'complete'",
            json!(url)
        );
        self.until(&there);
    }

    /// The value of an expression in the page.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", asked);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// What is to be read on the page, as people see it.
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let expression = format!("document.querySelector({})?.innerText ?? ''", json!(selector));
        self.eval(&expression).as_str().unwrap().to_owned()
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&mut self, expression: &str) {
        let began = Stopwatch::start();
        while self.eval(&format!("Boolean({expression})")) != json!(true) {
            if began.elapsed() > PATIENCE {
                let page = self.eval("document.body.innerText");
                panic!("never: {expression}\n{}", page.as_str().unwrap_or_default());
            }
            thread::sleep(Duration::from_millis(30));
        }
    }

    /// Waits until an element's text holds this.
    pub(crate) fn until_text(&mut self, selector: &str, text: &str) {
        let text = json!(text);
        self.until(&format!(
            "document.querySelector({})?.innerText.includes({text})",
            json!(selector)
        ));
    }

    /// Clicks what is visible, as a mouse would.
    pub(crate) fn click(&mut self, selector: &str) {
        let selector = json!(selector);
        let place = self.eval(&format!(
            "(e => {{ e.scrollIntoView({{block: 'center', behavior: 'instant'}}); const r = e.getBoundingClientRect();
              return [r.x + r.width / 2, r.y + r.height / 2, r.width] }})(document.querySelector({selector}))"
        ));
        assert!(
            place[2].as_f64().is_some_and(|width| width > 0.0),
            "{selector} is not to be seen"
        );
        for kind in ["mousePressed", "mouseReleased"] {
            let event =
                json!({"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Types a text into a field, in place of what was in it.
    pub(crate) fn fill(&mut self, selector: &str, text: &str) {
        self.eval(&format!(
            "(e => {{ e.focus(); e.select(); }})(document.querySelector({}))",
            json!(selector)
        ));
        self.call("Input.insertText", json!({"text": text}));
    }

    /// A picture of the window.
    pub(crate) fn picture(&mut self) -> Vec<u8> {
        let answer = self.call("Page.captureScreenshot", json!({"format": "png"}));
        let data = answer["data"].as_str().unwrap();
        base64::engine::general_purpose::STANDARD.decode(data).unwrap()
    }

    /// Nothing but this address was asked for, the page's policy had nothing to forbid, and no script failed.
    pub(crate) fn kept_to(&mut self, address: &str) {
        let violations = self.eval("window.violations ?? []");
        assert_eq!(violations, json!([]));
        assert!(!self.asked.is_empty());
        for url in &self.asked {
            assert!(url.starts_with(address), "{url} was asked for");
        }
        assert!(self.complaints.is_empty(), "{:?}", self.complaints);
    }

    /// Calls a method of the protocol.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.messages += 1;
        let id = self.messages;
        let mut message = json!({"id": id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        loop {
            let answer = self.from.recv_timeout(PATIENCE);
            let answer = answer.unwrap_or_else(|error| panic!("chromium does not answer {method}: {error}"));
            if answer["id"] == json!(id) {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.note(&answer);
        }
    }

    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        match event["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                let url = parameters["request"]["url"].as_str().unwrap();
                self.asked.push(url.to_owned());
            }
            Some("Runtime.exceptionThrown") => self.complaints.push(parameters.to_string()),
            _ => {}
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
