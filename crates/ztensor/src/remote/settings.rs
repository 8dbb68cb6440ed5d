//! How to reach a store: the caller's options over the environment's, checked.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{
    BackoffConfig, ClientConfigKey, ClientOptions, HeaderMap, HeaderValue, ObjectStore, RetryConfig,
};

use super::http::{self, Connector, Redirects};
use super::location::Scheme;
use super::raw_http::{Direct, Timeouts};
use super::{Location, Options, failure, hub};
use crate::error::{Error, Result, quoted};
use crate::suggest;

/// Settings of this library that can also be environment variables.
const OWN: [&str; 9] = [
    "timeout",
    "read_timeout",
    "connect_timeout",
    "retries",
    "connections",
    "memory",
    "part_size",
    "cache",
    "cache_size",
];

/// Everything that decides how requests to one store are made. Equal ones share a client.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Settings {
    /// The bucket, or the web server with the query of the URL.
    place: Location,
    /// Settings of the store, under its own names.
    store: BTreeMap<String, String>,
    timeout: Duration,
    read_timeout: Duration,
    connect_timeout: Duration,
    retries: usize,
    /// Requests under way at a time, at most.
    pub(super) connections: usize,
    /// Bytes that wait to be decoded.
    pub(super) memory: u64,
    /// Bytes of a part of an upload.
    pub(super) part_size: u64,
    /// Where what was read is kept, and how many bytes of it.
    pub(super) cache: Option<(PathBuf, Option<u64>)>,
}

/// Names only: values may be secrets.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.store.keys()).finish()
    }
}

fn invalid(name: &str, value: &str, what: &str) -> Error {
    Error::invalid(format!("the option {name} is {what}, not {}", quoted(value)))
}

fn seconds(name: &str, value: &str) -> Result<Duration> {
    let number = value.trim().trim_end_matches('s').parse::<f64>().ok();
    number
        .filter(|seconds| *seconds > 0.0)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| invalid(name, value, "a number of seconds"))
}

/// A number of bytes, perhaps with a unit of 1024.
fn bytes(name: &str, value: &str) -> Result<u64> {
    let text = value.trim().to_ascii_lowercase();
    let text = text.trim_end_matches("ib").trim_end_matches('b');
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 10),
        Some(b'm') => (&text[..text.len() - 1], 20),
        Some(b'g') => (&text[..text.len() - 1], 30),
        Some(b't') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number = digits.trim().parse::<u64>().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| invalid(name, value, "a number of bytes"))
}

fn count(name: &str, value: &str) -> Result<usize> {
    value.trim().parse().map_err(|_| invalid(name, value, "a number"))
}

impl Settings {
    /// What the environment and the caller say about a location's store.
    pub(super) fn resolve(location: &Location, options: &Options) -> Result<Arc<Settings>> {
        Self::from_environment(
            location,
            options,
            std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
        )
        .map(Arc::new)
        .map_err(|error| error.in_file(location.url()))
    }

    fn from_environment(
        location: &Location,
        options: &Options,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Settings> {
        let mut settings = Settings {
            place: location.root(),
            store: BTreeMap::new(),
            timeout: Duration::from_secs(120),
            read_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            retries: 5,
            connections: 16,
            memory: 256 << 20,
            part_size: 16 << 20,
            cache: None,
        };
        let mut cache_size = None;
        let prefix = settings.prefix();
        for (name, value) in environment {
            let lower = name.to_ascii_lowercase();
            if let Some(own) = lower.strip_prefix("ztensor_remote_") {
                if OWN.contains(&own) && !value.is_empty() {
                    settings.set_own(own, &value, &mut cache_size)?;
                }
            } else if name == "STORAGE_EMULATOR_HOST" && location.scheme() == Scheme::Gs {
                let host = if value.contains("://") { value } else { format!("http://{value}") };
                settings.store.insert("google_base_url".into(), host);
                // Emulators want no credentials, but the client insists on some for uploads.
                settings.store.entry("google_bearer_token".into()).or_insert("emulator".into());
            } else if prefix.is_some_and(|prefix| name.starts_with(prefix)) && settings.knows(&lower) {
                settings.store.insert(lower, value);
            }
        }
        for (name, value) in &options.0 {
            if OWN.contains(&name.as_str()) {
                settings.set_own(name, value, &mut cache_size)?;
            } else if settings.knows(name) {
                let prefix = settings.prefix().map(str::to_ascii_lowercase);
                // Both spellings of one setting may be there: the caller's wins.
                let full = prefix.map(|prefix| format!("{prefix}{name}")).filter(|full| settings.knows(full));
                settings.store.remove(full.as_deref().unwrap_or(name));
                settings.store.insert(full.unwrap_or_else(|| name.clone()), value.clone());
            } else {
                return Err(settings.unknown(name));
            }
        }
        let is_web = settings.prefix().is_none();
        if is_web
            && !settings.store.contains_key("bearer_token")
            && let Some(token) = hub::token(&location.url())
        {
            settings.store.insert("bearer_token".into(), token);
        }
        if let (Some((_, limit)), Some(size)) = (&mut settings.cache, cache_size) {
            *limit = Some(size);
        }
        Ok(settings)
    }

    fn scheme(&self) -> Scheme {
        self.place.scheme()
    }

    /// What the names of the store's environment variables start with.
    fn prefix(&self) -> Option<&'static str> {
        match self.scheme() {
            Scheme::S3 => Some("AWS_"),
            Scheme::Gs => Some("GOOGLE_"),
            Scheme::Az => Some("AZURE_"),
            Scheme::Http | Scheme::Https => None,
        }
    }

    /// An option that neither the store nor this library has.
    fn unknown(&self, name: &str) -> Error {
        let near = suggest::nearest(name, OWN.into_iter().chain(self.usual()));
        let hint = near.map(|near| format!("; did you mean {}?", quoted(near))).unwrap_or_default();
        let scheme = self.scheme().name();
        Error::invalid(format!("{} is not an option of {scheme}:// URLs{hint}", quoted(name)))
    }

    /// The options of the store that people set by hand, to suggest them.
    fn usual(&self) -> impl Iterator<Item = &'static str> + Clone {
        let own: &[&str] = match self.scheme() {
            Scheme::S3 => &[
                "region",
                "endpoint_url",
                "access_key_id",
                "secret_access_key",
                "session_token",
                "skip_signature",
                "virtual_hosted_style_request",
                "allow_http",
            ],
            Scheme::Gs => &["service_account", "service_account_key", "application_credentials", "base_url"],
            Scheme::Az => &["account_name", "account_key", "sas_token", "endpoint", "client_id", "tenant_id"],
            Scheme::Http | Scheme::Https => &["bearer_token", "proxy_url", "allow_invalid_certificates"],
        };
        own.iter().copied()
    }

    fn knows(&self, name: &str) -> bool {
        match self.scheme() {
            Scheme::S3 => AmazonS3ConfigKey::from_str(name).is_ok(),
            Scheme::Gs => GoogleConfigKey::from_str(name).is_ok(),
            Scheme::Az => AzureConfigKey::from_str(name).is_ok(),
            Scheme::Http | Scheme::Https => name == "bearer_token" || ClientConfigKey::from_str(name).is_ok(),
        }
    }

    fn set_own(&mut self, name: &str, value: &str, cache_size: &mut Option<u64>) -> Result<()> {
        match name {
            "timeout" => self.timeout = seconds(name, value)?,
            "read_timeout" => self.read_timeout = seconds(name, value)?,
            "connect_timeout" => self.connect_timeout = seconds(name, value)?,
            "retries" => self.retries = count(name, value)?,
            "connections" => self.connections = count(name, value)?.clamp(1, 1024),
            "memory" => self.memory = bytes(name, value)?,
            // Stores take no parts below 5 MiB but the last.
            "part_size" => self.part_size = bytes(name, value)?.clamp(5 << 20, 1 << 30),
            "cache" => self.cache = (!value.is_empty()).then(|| (PathBuf::from(value), None)),
            _ => *cache_size = Some(bytes(name, value)?),
        }
        Ok(())
    }

    fn retry(&self) -> RetryConfig {
        RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(10),
                base: 2.0,
            },
            max_retries: self.retries,
            retry_timeout: Duration::from_secs(180).max(self.timeout),
        }
    }

    /// Options of the HTTP client, under the names that all builders know.
    fn client(&self) -> Vec<(ClientConfigKey, String)> {
        let millis = |duration: Duration| format!("{}ms", duration.as_millis().max(1));
        vec![
            (ClientConfigKey::Timeout, millis(self.timeout)),
            (ClientConfigKey::ReadTimeout, millis(self.read_timeout)),
            (ClientConfigKey::ConnectTimeout, millis(self.connect_timeout)),
            (ClientConfigKey::UserAgent, http::AGENT.to_owned()),
        ]
    }

    /// An endpoint without TLS is one that the caller named so.
    fn plain_http(&self) -> bool {
        self.store.iter().any(|(name, value)| {
            (name.contains("endpoint") || name.contains("base_url") || name.contains("emulator"))
                && (value.starts_with("http://") || value == "true" && name.contains("emulator"))
        })
    }

    /// The way to a web server that needs no client: nothing is encrypted, and nothing is between.
    pub(super) fn direct(&self) -> Option<Direct> {
        let proxied = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]
            .into_iter()
            .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
        let ordinary = self.store.keys().all(|name| name == "bearer_token" || name == "allow_http");
        if self.scheme() != Scheme::Http || proxied || !ordinary {
            return None;
        }
        let timeouts =
            Timeouts { connect: self.connect_timeout, read: self.read_timeout, whole: self.timeout };
        let bearer = self.store.get("bearer_token").map(String::as_str);
        Direct::new(&self.place, bearer, timeouts)
    }

    /// Makes its HTTP clients: a web server may redirect to where its files are kept.
    fn connector(&self) -> Connector {
        let is_web = self.scheme().is_web();
        Connector {
            host: is_web.then(|| self.place.host().to_owned()),
            redirects: if is_web { Redirects::Web } else { Redirects::SameOrigin },
            query: self.place.query().map(str::to_owned),
        }
    }

    /// Makes the client of a store. It opens no connection yet.
    pub(super) fn build(&self) -> Result<Arc<dyn ObjectStore>> {
        let bucket = self.place.authority();
        let mut client = self.client();
        if self.plain_http() || self.scheme() == Scheme::Http {
            client.push((ClientConfigKey::AllowHttp, "true".to_owned()));
        }
        let built: object_store::Result<Arc<dyn ObjectStore>> = match self.scheme() {
            Scheme::S3 => {
                let mut builder = AmazonS3Builder::new()
                    .with_bucket_name(bucket)
                    .with_retry(self.retry())
                    .with_http_connector(self.connector());
                for (key, value) in client {
                    builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
                }
                for (name, value) in &self.store {
                    builder = match name.parse() {
                        Ok(key) => builder.with_config(key, value),
                        Err(_) => builder,
                    };
                }
                builder.build().map(|store| Arc::new(store) as _)
            }
            Scheme::Gs => {
                let mut builder = GoogleCloudStorageBuilder::new()
                    .with_bucket_name(bucket)
                    .with_retry(self.retry())
                    .with_http_connector(self.connector());
                for (key, value) in client {
                    builder = builder.with_config(GoogleConfigKey::Client(key), value);
                }
                for (name, value) in &self.store {
                    builder = match name.parse() {
                        Ok(key) => builder.with_config(key, value),
                        Err(_) => builder,
                    };
                }
                builder.build().map(|store| Arc::new(store) as _)
            }
            Scheme::Az => {
                let mut builder = MicrosoftAzureBuilder::new()
                    .with_container_name(bucket)
                    .with_retry(self.retry())
                    .with_http_connector(self.connector());
                for (key, value) in client {
                    builder = builder.with_config(AzureConfigKey::Client(key), value);
                }
                for (name, value) in &self.store {
                    builder = match name.parse() {
                        Ok(key) => builder.with_config(key, value),
                        Err(_) => builder,
                    };
                }
                builder.build().map(|store| Arc::new(store) as _)
            }
            Scheme::Http | Scheme::Https => {
                let mut options = ClientOptions::new();
                for (key, value) in client {
                    options = options.with_config(key, value);
                }
                for (name, value) in &self.store {
                    if name == "bearer_token" {
                        let mut headers = HeaderMap::new();
                        let mut token = HeaderValue::try_from(format!("Bearer {value}")).map_err(|_| {
                            Error::invalid("the option bearer_token is not a valid header value")
                        })?;
                        token.set_sensitive(true);
                        headers.insert("authorization", token);
                        options = options.with_default_headers(headers);
                    } else if let Ok(key) = name.parse() {
                        options = options.with_config(key, value);
                    }
                }
                let builder = HttpBuilder::new()
                    .with_url(self.place.url())
                    .with_client_options(options)
                    .with_retry(self.retry())
                    .with_http_connector(self.connector());
                builder.build().map(|store| Arc::new(store) as _)
            }
        };
        built.map_err(|error| Error::invalid(format!("the store cannot be used: {}", failure::cause(&error))))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::remote::{Place, place};

    fn resolved(url: &str, options: &[(&str, &str)], environment: &[(&str, &str)]) -> Result<Settings> {
        let Place::Remote(location) = place(Path::new(url)).unwrap() else { panic!("{url} is local") };
        let options = options.iter().copied().collect();
        let pairs = environment.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        Settings::from_environment(&location, &options, pairs)
    }

    #[test]
    fn options_come_before_the_environment() {
        let environment = [
            ("AWS_ENDPOINT_URL", "http://one"),
            ("AWS_REGION", "here"),
            ("AWS_PAGER", "less"),
            ("GOOGLE_BASE_URL", "http://other"),
            ("ZTENSOR_REMOTE_RETRIES", "7"),
            ("ZTENSOR_REMOTE_MEMORY", "1MiB"),
        ];
        let settings =
            resolved("s3://b/k", &[("endpoint_url", "http://two"), ("retries", "2")], &environment);
        let settings = settings.unwrap();
        assert_eq!(settings.store["aws_endpoint_url"], "http://two");
        assert_eq!(settings.store["aws_region"], "here");
        assert_eq!(settings.store.len(), 2);
        assert_eq!((settings.retries, settings.memory), (2, 1 << 20));
        assert!(settings.plain_http());
        assert!(!format!("{settings:?}").contains("two"), "values may be secrets");
        settings.build().unwrap();
    }

    #[test]
    fn every_scheme_builds_with_its_own_variables() {
        let google = resolved("gs://b/k", &[], &[("STORAGE_EMULATOR_HOST", "localhost:4443")]).unwrap();
        assert_eq!(google.store["google_base_url"], "http://localhost:4443");
        google.build().unwrap();
        let azure = [
            ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
            ("AZURE_STORAGE_ACCOUNT_KEY", "a2V5"),
            ("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:10000/account"),
        ];
        let azure = resolved("az://container/k", &[], &azure).unwrap();
        assert_eq!(azure.store.len(), 3);
        azure.build().unwrap();
        resolved("https://host/k?x=y", &[("bearer_token", "t")], &[]).unwrap().build().unwrap();
    }

    #[test]
    fn wrong_options_are_refused_by_name() {
        for (name, value) in [
            ("no_such_option", "1"),
            ("timeout", "soon"),
            ("timeout", "-1"),
            ("retries", "many"),
            ("memory", "1 elephant"),
            ("memory", "99999999999999T"),
        ] {
            let error = resolved("s3://b/k", &[(name, value)], &[]).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
        assert!(resolved("http://h/k", &[("region", "here")], &[]).is_err());
        // Variables of others are none of our business.
        resolved("s3://b/k", &[], &[("AWS_NO_SUCH", "1"), ("ZTENSOR_REMOTE_NO_SUCH", "1")]).unwrap();
    }

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!(bytes("x", "3").unwrap(), 3);
        assert_eq!(bytes("x", "3k").unwrap(), 3 << 10);
        assert_eq!(bytes("x", " 3 MiB ").unwrap(), 3 << 20);
        assert_eq!(bytes("x", "3GB").unwrap(), 3 << 30);
        assert_eq!(seconds("x", "0.5").unwrap(), Duration::from_millis(500));
        assert_eq!(seconds("x", "2s").unwrap(), Duration::from_secs(2));
    }
}
