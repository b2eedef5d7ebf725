//! The `cota` binary: parse the command line, run it, map the result to an exit code.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cota::cli::Cli::read(std::env::args_os()).run() {
        Ok(code) => code,
        Err(error) => {
            // One line: what failed and why.
            eprintln!("cota: {error:#}");
            ExitCode::FAILURE
        }
    }
}
