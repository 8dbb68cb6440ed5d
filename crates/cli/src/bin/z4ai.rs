//! The `z4ai` program.

fn main() -> std::process::ExitCode {
    ztensor_cli::run_z4ai(std::env::args_os())
}
