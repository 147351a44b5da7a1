//! Accepts TLS connections for HTTPS, where the feature `tls` is on.

use crate::options::{StartError, TlsFiles};
use std::io;
use tokio::net::TcpStream;

#[cfg(feature = "tls")]
pub(crate) use with::Acceptor;
#[cfg(not(feature = "tls"))]
pub(crate) use without::Acceptor;

/// Reads the TLS certificate and its key, and makes the acceptor of TLS connections from
/// them.
pub(crate) fn acceptor(files: &TlsFiles) -> Result<Acceptor, StartError> {
    Acceptor::load(files).map_err(|what| StartError::Tls { what })
}

#[cfg(feature = "tls")]
mod with {
    use super::{TcpStream, TlsFiles, io};
    use rustls::ServerConfig;
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use std::sync::Arc;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::server::TlsStream;

    /// Checks that the processor has the instructions without which the cryptography
    /// library would panic.
    fn supported() -> Result<(), String> {
        #[cfg(target_arch = "x86_64")]
        {
            let all = is_x86_feature_detected!("aes")
                && is_x86_feature_detected!("ssse3")
                && is_x86_feature_detected!("pclmulqdq")
                && is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("adx");
            if !all {
                let needs = "AES, SSSE3, PCLMULQDQ, AVX2, BMI1, BMI2 and ADX";
                return Err(format!("needs {needs}, which this processor lacks in part"));
            }
        }
        Ok(())
    }

    /// Accepts TLS connections: makes the handshake on a TCP connection.
    #[derive(Clone)]
    pub(crate) struct Acceptor(TlsAcceptor);

    impl Acceptor {
        pub(super) fn load(files: &TlsFiles) -> Result<Self, String> {
            supported()?;
            let named = |path: &std::path::Path| path.display().to_string();
            let bad =
                |path: &std::path::Path, e: &dyn std::fmt::Display| format!("{}: {e}", named(path));
            let chain = CertificateDer::pem_file_iter(&files.certificates)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|e| bad(&files.certificates, &e))?;
            let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|e| bad(&files.key, &e))?;
            let provider = Arc::new(rustls_graviola::default_provider());
            let config = ServerConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|e| e.to_string())?
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .map_err(|e| bad(&files.certificates, &e))?;
            Ok(Self(TlsAcceptor::from(Arc::new(config))))
        }

        pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
            self.0.accept(stream).await
        }
    }
}

#[cfg(not(feature = "tls"))]
mod without {
    use super::{TcpStream, TlsFiles, io};

    /// Stands in for the acceptor of TLS connections in a build without the feature
    /// `tls`: no value of it exists.
    #[derive(Clone)]
    pub(crate) enum Acceptor {}

    impl Acceptor {
        pub(super) fn load(_: &TlsFiles) -> Result<Self, String> {
            Err("this build has none: build with the feature `tls`".to_owned())
        }

        pub(crate) async fn accept(&self, _: TcpStream) -> io::Result<TcpStream> {
            match *self {}
        }
    }
}
