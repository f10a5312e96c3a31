//! A request to stop, shared by everybody who works on one batch.

use std::sync::Arc;

use tokio::sync::watch;

/// A token that is cancelled at most once. Clones are the same token.
#[derive(Debug, Clone)]
pub struct Cancel {
    sender: Arc<watch::Sender<bool>>,
}

impl Default for Cancel {
    fn default() -> Self {
        Self {
            sender: Arc::new(watch::Sender::new(false)),
        }
    }
}

impl Cancel {
    /// A token that nobody has cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks everybody to stop. Harmless when repeated.
    pub fn cancel(&self) {
        self.sender.send_replace(true);
    }

    /// Whether somebody asked to stop.
    pub fn is_cancelled(&self) -> bool {
        *self.sender.borrow()
    }

    /// Returns once somebody has asked to stop.
    pub async fn cancelled(&self) {
        let mut receiver = self.sender.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = receiver.wait_for(|cancelled| *cancelled).await;
    }
}
