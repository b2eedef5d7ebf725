//! The `cota` binary: parse the command line, run it, map the result to an exit code.

use std::process::ExitCode;

use clap::Parser as _;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cota::cli::Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            // One line: what failed and why.
            eprintln!("cota: {error:#}");
            ExitCode::FAILURE
        }
    }
}
