//! TLS: connections whose handshake is done come in, the others hold up nobody.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use engine::words::io_problem;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::settings::Tls;

/// How long a client may take for its handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Handshakes at a time.
const HANDSHAKES: usize = 256;

/// Reads certificate and key; an error says which file is wrong.
pub fn configuration(tls: &Tls) -> Result<ServerConfig, String> {
    let certificate = tls.certificate.display();
    let text = std::fs::read(&tls.certificate)
        .map_err(|error| format!("the certificate `{certificate}`: {}", io_problem(&error)))?;
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("the certificate `{certificate}` is not PEM: {error}"))?;
    if chain.is_empty() {
        return Err(format!("there is no certificate in `{certificate}`"));
    }
    let key = tls.key.display();
    let text = std::fs::read(&tls.key)
        .map_err(|error| format!("the key `{key}`: {}", io_problem(&error)))?;
    let private = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|error| format!("there is no private key in `{key}`: {error}"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut configuration = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| format!("`{key}` does not fit `{certificate}`: {error}"))?;
    configuration.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(configuration)
}

/// Accepts connections and gives out those whose handshake is done.
pub struct TlsListener {
    address: SocketAddr,
    done: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
}

impl TlsListener {
    /// Takes over a listener.
    pub fn new(listener: TcpListener, configuration: ServerConfig) -> io::Result<TlsListener> {
        let address = listener.local_addr()?;
        let acceptor = TlsAcceptor::from(Arc::new(configuration));
        let (give, done) = mpsc::channel(64);
        tokio::spawn(accept(listener, acceptor, give));
        Ok(TlsListener { address, done })
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    give: mpsc::Sender<(TlsStream<TcpStream>, SocketAddr)>,
) {
    let turns = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let Ok(turn) = Arc::clone(&turns).acquire_owned().await else {
            return;
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = give.closed() => return,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Such as too many open files: it passes.
                tracing::warn!(%error, "a connection is not accepted");
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        let (acceptor, give) = (acceptor.clone(), give.clone());
        tokio::spawn(async move {
            let _turn = turn;
            match tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    // Nobody takes it when the server stops.
                    let _ = give.send((stream, from)).await;
                }
                Ok(Err(error)) => tracing::debug!(%from, %error, "a handshake failed"),
                Err(_) => tracing::debug!(%from, "a handshake took too long"),
            }
        });
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.done.recv().await {
            Some(accepted) => accepted,
            // The accepting task ends only after this listener.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.address)
    }
}
