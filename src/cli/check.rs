//! `cota check`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::clock::{Clock as _, SystemClock};
use crate::config::fault::Severity;
use crate::config::{load, watch};

#[derive(Debug, Args)]
pub(super) struct Check {
    /// Policy files or directories
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Treat warnings as errors
    #[arg(long)]
    deny_warnings: bool,
}

impl Check {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let sources = watch::sources(&self.paths)?;
        let loaded = load(&sources, SystemClock.now());
        for fault in &loaded.faults {
            println!("{fault}");
        }
        let count = |severity| {
            loaded
                .faults
                .iter()
                .filter(|fault| fault.severity == severity)
                .count()
        };
        let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
        let good: Vec<_> = loaded
            .domains
            .iter()
            .filter_map(|item| item.domain.as_ref())
            .collect();
        let limits: usize = good.iter().map(|domain| domain.limit_count()).sum();
        if loaded.domains.is_empty() && errors == 0 {
            return Err(watch::ReadError::no_domain(&self.paths).into());
        }
        println!(
            "{} files, {} domains, {limits} limits: {errors} errors, {warnings} warnings",
            sources.len(),
            good.len()
        );
        let failed = errors > 0 || (self.deny_warnings && warnings > 0);
        Ok(if failed {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        })
    }
}
