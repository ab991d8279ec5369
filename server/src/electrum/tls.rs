//! The certificate: made on first start, and read again when its file changes.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use anyhow::Context;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::config::CertificateFiles;
use super::lock;

/// Settings for TLS 1.2 and 1.3 with the certificate of these files.
pub(crate) fn server_config(files: &CertificateFiles) -> anyhow::Result<Arc<ServerConfig>> {
    create_if_missing(files)?;
    let seen = stamp(files)?;
    let key = Arc::new(load(files)?);
    let resolver = Certificate { files: files.clone(), state: Mutex::new((seen, key)) };
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    Ok(Arc::new(config))
}

/// When and how large both files were.
type Stamp = [(SystemTime, u64); 2];

fn stamp(files: &CertificateFiles) -> anyhow::Result<Stamp> {
    let of = |path: &Path| -> anyhow::Result<(SystemTime, u64)> {
        let data = fs::metadata(path).with_context(|| format!("can't read {}", path.display()))?;
        Ok((data.modified()?, data.len()))
    };
    Ok([of(&files.certificate)?, of(&files.key)?])
}

fn load(files: &CertificateFiles) -> anyhow::Result<CertifiedKey> {
    let in_file = |path: &Path| format!("in {}", path.display());
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| in_file(&files.certificate))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).with_context(|| in_file(&files.key))?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).with_context(|| {
        format!("{} and {} don't belong together", files.certificate.display(), files.key.display())
    })
}

fn create_if_missing(files: &CertificateFiles) -> anyhow::Result<()> {
    let (certificate, key) = (files.certificate.exists(), files.key.exists());
    if certificate && key {
        return Ok(());
    }
    if certificate || key {
        let (there, missing) =
            if certificate { (&files.certificate, &files.key) } else { (&files.key, &files.certificate) };
        anyhow::bail!("{} is there, but {} isn't", there.display(), missing.display());
    }
    let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let made = rcgen::generate_simple_self_signed(names).context("can't make a certificate")?;
    // The key first: with it alone the next start says what is missing, and nobody may read it, not even for a moment.
    write_new(&files.key, made.signing_key.serialize_pem().as_bytes(), 0o600)?;
    write_new(&files.certificate, made.cert.pem().as_bytes(), 0o644)?;
    tracing::info!("made a self-signed certificate: {}", files.certificate.display());
    Ok(())
}

fn write_new(path: &Path, content: &[u8], mode: u32) -> anyhow::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("can't make {}", parent.display()))?;
    }
    let write = || options.open(path)?.write_all(content);
    write().with_context(|| format!("can't write {}", path.display()))
}

/// Gives every new connection the certificate as it is in the files now.
#[derive(Debug)]
struct Certificate {
    files: CertificateFiles,
    state: Mutex<(Stamp, Arc<CertifiedKey>)>,
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut state = lock(&self.state);
        // Two calls that ask the file system for names; a file that is away for a moment changes nothing.
        if let Ok(now) = stamp(&self.files)
            && now != state.0
        {
            match load(&self.files) {
                Ok(key) => {
                    *state = (now, Arc::new(key));
                    tracing::info!("read the certificate again: {}", self.files.certificate.display());
                }
                Err(error) => {
                    // Perhaps only one of the two was replaced yet.
                    tracing::warn!("the old certificate stays in use: {error:#}");
                }
            }
        }
        Some(Arc::clone(&state.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_made_once_and_half_a_one_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let files = CertificateFiles::in_dir(dir.path().join("new"));
        server_config(&files).unwrap();
        let made = fs::read(&files.certificate).unwrap();
        server_config(&files).unwrap();
        assert_eq!(fs::read(&files.certificate).unwrap(), made);
        #[cfg(unix)]
        {
            let mode =
                std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&files.key).unwrap().permissions());
            assert_eq!(mode & 0o777, 0o600);
        }
        fs::remove_file(&files.key).unwrap();
        assert!(server_config(&files).unwrap_err().to_string().contains("is there, but"));
        fs::write(&files.key, "nonsense").unwrap();
        assert!(server_config(&files).is_err());
    }
}
