//! Ctrl-C and SIGTERM become a request to cancel.

use lifecycle::Cancel;

use crate::exit::Exit;

/// Watches for SIGINT and SIGTERM until the runtime ends. The first asks the attempt to
/// stop, so that it can tidy up and report; the second leaves at once.
pub fn cancel_on_signals(cancel: Cancel) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if cancel.is_cancelled() {
                std::process::exit(Exit::Cancelled.code().into());
            }
            eprintln!("warpline: cancelling; press Ctrl-C again to leave at once");
            cancel.cancel();
        }
    });
    Ok(())
}
