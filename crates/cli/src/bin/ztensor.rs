//! The `ztensor` program.

fn main() -> std::process::ExitCode {
    ztensor_cli::run(std::env::args_os())
}
