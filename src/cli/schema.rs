//! `cota schema`.

use std::process::ExitCode;

use clap::Args;

use crate::config::schema::schema;

#[derive(Debug, Args)]
pub(super) struct Schema {}

impl Schema {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        println!("{}", serde_json::to_string_pretty(&schema())?);
        Ok(ExitCode::SUCCESS)
    }
}
