//! HTTP clients: the one place where they are made.
//!
//! Object stores, web servers and model hubs get their client here and nowhere else (`clippy.toml`
//! disallows other constructors), so that none of them can forget a rule:
//!
//! - no `Referer`: the query of a URL may be a signature,
//! - redirects are limited, never go from HTTPS to HTTP, and never from a public host to an address
//!   of this machine or of a private network; those of object stores stay on their origin, because
//!   some of their credentials are in headers that a client forwards,
//! - connecting and every read have a time-out, and a server that cannot be reached at all is an
//!   error within a second or two, whatever the number of retries,
//! - a body is never longer than what its request was for.

use std::fmt;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Certificate, ClientBuilder, NoProxy, Proxy, Url, redirect};

use crate::error::{Error, Result};

/// Redirects that are followed for one request. (limit)
const REDIRECTS: usize = 10;

const TOO_MANY: &str = "redirected more than";

/// Longest body that is not an object: listings, credentials, confirmations. (limit)
const LONGEST_DOCUMENT: u64 = 64 << 20;

/// Longest body of a refusal. Its text becomes part of an error message. (limit)
const LONGEST_REFUSAL: u64 = 1 << 20;

/// Pauses before a connection that could not be made is tried again: long enough for a server that
/// restarts, short enough for a wrong port or host to be an error within two seconds.
const RECONNECT_PAUSES: [Duration; 2] = [Duration::from_millis(150), Duration::from_millis(500)];

/// The name that requests are made under.
pub(super) const AGENT: &str = concat!("ztensor/", env!("CARGO_PKG_VERSION"));

/// Where redirects may lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Redirects {
    /// Nowhere but to the same scheme, host and port.
    SameOrigin,
    /// To other hosts, by the rules of [`allowed`].
    Web,
}

/// Why a redirect is not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused(String);

impl Refused {
    /// Whether it is a loop rather than a place that is not allowed.
    pub(super) fn is_loop(&self) -> bool {
        self.0.contains(TOO_MANY)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// A server to which there is no connection: it refused, its network is unreachable, or its name
/// was not found. The clients of object stores do not repeat such requests.
#[derive(Debug)]
pub(super) struct Unreachable {
    pub(super) kind: ErrorKind,
    message: String,
}

impl Unreachable {
    /// If that is what an error means. `server` is the host and the port of the request.
    pub(super) fn of(error: &(dyn std::error::Error + 'static), server: &str) -> Option<Unreachable> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(failed) = error.downcast_ref::<Lookup>() {
                let message = format!("the host name of {server} cannot be resolved: {}", failed.0);
                return Some(Unreachable { kind: ErrorKind::NotConnected, message });
            }
            let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
            let why = match kind {
                Some(ErrorKind::ConnectionRefused) => "refused the connection: is the server running there?",
                Some(ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) => {
                    "is unreachable from this network"
                }
                _ => {
                    next = error.source();
                    continue;
                }
            };
            return kind.map(|kind| Unreachable { kind, message: format!("{server} {why}") });
        }
        None
    }
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Unreachable {}

/// The failure of a name lookup.
#[derive(Debug)]
struct Lookup(io::Error);

impl fmt::Display for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Lookup {}

/// The URL of the next page of a listing, which the Hub puts into the header of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NextPage(pub(super) String);

impl NextPage {
    /// From the value of a `Link` header (RFC 8288).
    pub(super) fn parse(link: &str) -> Option<NextPage> {
        let mut rest = link;
        while let Some((_, after)) = rest.split_once('<') {
            let (url, parameters) = after.split_once('>')?;
            let own = parameters.split('<').next().unwrap_or_default();
            let is_next = |text: &str| matches!(text.trim(), "rel=next" | "rel=\"next\"");
            if own.split([';', ',']).any(is_next) {
                return Some(NextPage(url.to_owned()));
            }
            rest = parameters;
        }
        None
    }
}

/// Addresses that only this machine or its own network can reach.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            v4.is_loopback()
                || v4.is_private()
                || v4.is_link_local()
                || v4.is_unspecified()
                || v4.is_broadcast()
                || first == 0
                || (first == 100 && (64..128).contains(&second))
        }
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => is_private(IpAddr::V4(v4)),
            None => {
                v6.is_loopback() || v6.is_unspecified() || v6.is_unique_local() || v6.is_unicast_link_local()
            }
        },
    }
}

/// Whether the text of a host says that it is of this machine or of a private network: such an
/// address, or a name that the public DNS does not have.
fn names_private(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse() {
        return is_private(address);
    }
    let name = bare.trim_end_matches('.').to_ascii_lowercase();
    let reserved = [".localhost", ".local", ".internal", ".lan", ".home.arpa"];
    !name.contains('.') || reserved.iter().any(|suffix| name.ends_with(suffix))
}

fn is_same_origin(one: &Url, other: &Url) -> bool {
    one.scheme() == other.scheme()
        && one.host_str() == other.host_str()
        && one.port_or_known_default() == other.port_or_known_default()
}

/// Whether a redirect may be followed. `previous` are the URLs so far, the first of which the
/// caller named.
fn allowed(previous: &[Url], next: &Url, redirects: Redirects) -> std::result::Result<(), Refused> {
    let refused = |why: &str| Err(Refused(format!("the server redirects {why}")));
    let (Some(first), Some(last)) = (previous.first(), previous.last()) else { return Ok(()) };
    if previous.len() > REDIRECTS {
        return refused(&format!("without end: {TOO_MANY} {REDIRECTS} times"));
    }
    match next.scheme() {
        "https" => {}
        "http" if last.scheme() == "http" => {}
        _ => return refused("to something less secure"),
    }
    if redirects == Redirects::SameOrigin && !is_same_origin(last, next) {
        return refused("to another host: name the endpoint that it redirects to");
    }
    let (from, to) = (first.host_str().unwrap_or_default(), next.host_str().unwrap_or_default());
    if from != to && names_private(to) && !names_private(from) {
        return refused(
            "to an address of a private network, which is refused: open that address itself if you trust it",
        );
    }
    Ok(())
}

/// Looks up names, in an order that spreads requests over the addresses of a store. The name that
/// the caller gave may have any address; the names that redirects lead to may be private only if
/// that one is.
struct Resolver {
    own: Option<String>,
    own_is_private: Arc<AtomicBool>,
    turn: Arc<AtomicUsize>,
}

impl Resolver {
    fn new(own: Option<&str>) -> Resolver {
        let own_is_private = Arc::new(AtomicBool::new(own.is_some_and(names_private)));
        Resolver { own: own.map(str::to_ascii_lowercase), own_is_private, turn: Arc::default() }
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let is_own = self.own.as_deref().is_none_or(|own| own == name.as_str());
        let (own_is_private, turn) = (Arc::clone(&self.own_is_private), Arc::clone(&self.turn));
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await.map_err(Lookup)?;
            let mut addresses: Vec<SocketAddr> = found.collect();
            let any_private = addresses.iter().any(|address| is_private(address.ip()));
            if is_own && any_private {
                own_is_private.store(true, Ordering::Relaxed);
            } else if !is_own && any_private && !own_is_private.load(Ordering::Relaxed) {
                let why = "the server redirects to an address of a private network, which is refused: open that address itself if you trust it";
                return Err(Refused(why.to_owned()).into());
            }
            if let Some(middle) = turn.fetch_add(1, Ordering::Relaxed).checked_rem(addresses.len()) {
                addresses.rotate_left(middle);
            }
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// A client whose host is named by the caller; `None` for stores, which have several.
#[allow(clippy::disallowed_methods, reason = "the one place where clients are made")]
fn builder(host: Option<&str>, redirects: Redirects) -> ClientBuilder {
    let policy = redirect::Policy::custom(move |attempt| {
        match allowed(attempt.previous(), attempt.url(), redirects) {
            Ok(()) => attempt.follow(),
            Err(refused) => attempt.error(refused),
        }
    });
    let proxied = ["http_proxy", "https_proxy", "all_proxy"].into_iter().any(|name| {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        set(name) || set(&name.to_ascii_uppercase())
    });
    // The name of a proxy is looked up too, and usually private.
    let resolver = Resolver::new(host.filter(|_| !proxied));
    ClientBuilder::new()
        .user_agent(AGENT)
        .referer(false)
        .redirect(policy)
        .dns_resolver(Arc::new(resolver))
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate()
}

/// Adds the authorities in the file that `SSL_CERT_FILE` names, which then are the only ones;
/// otherwise servers are trusted that the system trusts.
fn with_authorities(builder: ClientBuilder) -> Result<ClientBuilder> {
    let Some(path) = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()) else {
        return Ok(builder);
    };
    let path = Path::new(&path);
    let unclear =
        |why: &dyn fmt::Display| Error::invalid(format!("SSL_CERT_FILE: {}: {why}", path.display()));
    let text = std::fs::read(path).map_err(|error| unclear(&error))?;
    let certificates = Certificate::from_pem_bundle(&text).map_err(|error| unclear(&error))?;
    match certificates.is_empty() {
        true => Err(unclear(&"there are no certificates in it")),
        false => Ok(builder.tls_certs_only(certificates)),
    }
}

/// Builds a client. A system without certificate authorities, as minimal containers are, is the one
/// failure that a user can do something about.
fn build(builder: ClientBuilder) -> std::result::Result<reqwest::Client, String> {
    builder.build().map_err(|error| {
        let why = super::failure::innermost(&error);
        match why.contains("No CA certificates") {
            true => "this system has no certificate authorities, by which servers are trusted: install its \
                     package of them (usually ca-certificates), or set SSL_CERT_FILE to a PEM file of them"
                .to_owned(),
            false => format!("there can be no HTTP client: {why}"),
        }
    })
}

/// A client for requests to the web server `host` that are not for tensor files.
pub(super) fn web(host: Option<&str>) -> Result<reqwest::Client> {
    super::runtime::provide_cryptography();
    let builder = with_authorities(builder(host, Redirects::Web))?;
    let timeout = Duration::from_secs(60);
    build(builder.connect_timeout(timeout / 2).read_timeout(timeout)).map_err(Error::invalid)
}

/// Makes the clients of an object store or a web server.
pub(super) struct Connector {
    /// The host of a web server.
    pub(super) host: Option<String>,
    pub(super) redirects: Redirects,
    /// Added to every request: what follows `?` in the URL of a web server.
    pub(super) query: Option<String>,
}

/// The query may be a signature.
impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

fn configuration(why: impl fmt::Display) -> object_store::Error {
    object_store::Error::Generic { store: "http", source: why.to_string().into() }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let text = |key: ClientConfigKey| options.get_config_value(&key);
        let is =
            |key| text(key).is_some_and(|value| matches!(&*value, "true" | "1" | "yes" | "on" | "y" | "t"));
        let duration = |key| -> object_store::Result<Option<Duration>> {
            text(key).map(|value| humantime::parse_duration(&value).map_err(configuration)).transpose()
        };
        let mut builder = builder(self.host.as_deref(), self.redirects);
        if let Some(headers) = options.get_default_headers() {
            builder = builder.default_headers(headers.clone());
        }
        if let Some(agent) = text(ClientConfigKey::UserAgent) {
            builder = builder.user_agent(agent);
        }
        if let Some(url) = text(ClientConfigKey::ProxyUrl) {
            let mut proxy = Proxy::all(&url).map_err(configuration)?;
            if let Some(certificate) = text(ClientConfigKey::ProxyCaCertificate) {
                let certificate = Certificate::from_pem(certificate.as_bytes()).map_err(configuration)?;
                builder = builder.tls_certs_merge([certificate]);
            }
            if let Some(excluded) = text(ClientConfigKey::ProxyExcludes) {
                proxy = proxy.no_proxy(NoProxy::from_string(&excluded));
            }
            builder = builder.proxy(proxy);
        }
        builder = match is(ClientConfigKey::NoSystemCertificates) {
            true => builder.tls_certs_only([]),
            false => with_authorities(builder).map_err(configuration)?,
        };
        if let Some(time) = duration(ClientConfigKey::Timeout)? {
            builder = builder.timeout(time);
        }
        if let Some(time) = duration(ClientConfigKey::ConnectTimeout)? {
            builder = builder.connect_timeout(time);
        }
        if let Some(time) = duration(ClientConfigKey::ReadTimeout)? {
            builder = builder.read_timeout(time);
        }
        if let Some(time) = duration(ClientConfigKey::PoolIdleTimeout)? {
            builder = builder.pool_idle_timeout(time);
        }
        if let Some(most) = text(ClientConfigKey::PoolMaxIdlePerHost) {
            builder = builder.pool_max_idle_per_host(most.parse().map_err(configuration)?);
        }
        if let Some(time) = duration(ClientConfigKey::Http2KeepAliveInterval)? {
            builder = builder.http2_keep_alive_interval(time);
        }
        if let Some(time) = duration(ClientConfigKey::Http2KeepAliveTimeout)? {
            builder = builder.http2_keep_alive_timeout(time);
        }
        if let Some(size) = text(ClientConfigKey::Http2MaxFrameSize) {
            builder = builder.http2_max_frame_size(Some(size.parse().map_err(configuration)?));
        }
        builder = builder.http2_keep_alive_while_idle(is(ClientConfigKey::Http2KeepAliveWhileIdle));
        if is(ClientConfigKey::Http1Only) {
            builder = builder.http1_only();
        }
        if is(ClientConfigKey::Http2Only) {
            builder = builder.http2_prior_knowledge();
        }
        if is(ClientConfigKey::AllowInvalidCertificates) {
            builder = builder.tls_danger_accept_invalid_certs(true);
        }
        let client = build(builder.https_only(!is(ClientConfigKey::AllowHttp))).map_err(configuration)?;
        let service = Service { client, query: self.query.clone(), is_web: self.redirects == Redirects::Web };
        Ok(HttpClient::new(service))
    }
}

/// A client that adds the query to every request and limits the body of every answer.
struct Service {
    client: reqwest::Client,
    query: Option<String>,
    is_web: bool,
}

/// The query may be a signature.
impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Service")
    }
}

type Answer<'a> = Pin<Box<dyn Future<Output = std::result::Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Service {
    fn call<'s, 'a>(&'s self, mut request: HttpRequest) -> Answer<'a>
    where
        's: 'a,
        Self: 'a,
    {
        Box::pin(async move {
            if let Some(query) = &self.query
                && request.uri().query().is_none()
            {
                let url = format!("{}?{query}", request.uri());
                *request.uri_mut() = url.parse().map_err(|_| {
                    let message = "the query of the URL cannot be sent".to_owned();
                    HttpError::new(HttpErrorKind::Unknown, Refused(message))
                })?;
            }
            let range = request.headers().get("range").or(request.headers().get("x-ms-range"));
            let asked = match range.and_then(|range| range_len(range.to_str().ok()?)) {
                Some(len) => len,
                // Whole objects of web servers, which have no listings, are received by `collect`.
                None if self.is_web && request.method() == "GET" => u64::MAX,
                None => LONGEST_DOCUMENT,
            };
            let (mut parts, body) = self.send(request).await?.into_parts();
            let link = parts.headers.get("link").and_then(|link| link.to_str().ok());
            if let Some(next) = link.and_then(NextPage::parse) {
                parts.extensions.insert(next);
            }
            let most = match parts.status.is_success() {
                true => asked,
                false => LONGEST_REFUSAL,
            };
            let body = Limited { inner: body, left: most, most };
            Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
        })
    }
}

impl Service {
    /// Sends a request, again if there is no connection, and then not for long.
    async fn send(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let mut pauses = RECONNECT_PAUSES.into_iter();
        loop {
            let error = match HttpService::call(&self.client, request.clone()).await {
                Err(error) if error.kind() == HttpErrorKind::Connect => error,
                answered => return answered,
            };
            let server = request.uri().authority().map_or("", |authority| authority.as_str());
            let Some(unreachable) = Unreachable::of(&error, server) else { return Err(error) };
            match pauses.next() {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(HttpError::new(HttpErrorKind::Unknown, unreachable)),
            }
        }
    }
}

/// How many bytes a `Range` header asks for at most.
fn range_len(range: &str) -> Option<u64> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    match (first, last) {
        ("", last) => last.parse().ok(),
        (_, "") => None,
        (first, last) => last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1),
    }
}

/// A body that fails where it gets longer than what was asked for.
struct Limited {
    inner: HttpResponseBody,
    left: u64,
    most: u64,
}

impl Body for Limited {
    type Data = bytes::Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Self::Data>, HttpError>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let len = frame.data_ref().map_or(0, |data| data.len() as u64);
            match self.left.checked_sub(len) {
                Some(left) => self.left = left,
                None => {
                    let message = format!("the server sends more than the {} bytes it may", self.most);
                    return Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Unknown, Refused(message)))));
                }
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    /// No larger than the limit: memory is reserved by it.
    fn size_hint(&self) -> SizeHint {
        let inner = self.inner.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().min(self.left));
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn redirects_that_are_followed_and_that_are_not() {
        let cases = [
            ("https://hub.example/m", "https://cdn.example/a?b", true),
            ("https://hub.example/m", "https://hub.example/n", true),
            ("http://hub.example/m", "https://hub.example/m", true),
            ("http://hub.example/m", "http://cdn.example/m", true),
            ("https://hub.example/m", "http://hub.example/m", false),
            ("https://hub.example/m", "file:///etc/passwd", false),
            ("https://hub.example/m", "https://127.0.0.1/m", false),
            ("https://hub.example/m", "https://localhost:8080/m", false),
            ("http://hub.example/m", "http://169.254.169.254/latest/meta-data", false),
            ("http://hub.example/m", "http://10.0.0.1/m", false),
            ("http://hub.example/m", "http://[::1]/m", false),
            ("http://hub.example/m", "http://[::ffff:127.0.0.1]/m", false),
            ("http://hub.example/m", "http://[fd00::1]/m", false),
            ("http://hub.example/m", "http://metadata.google.internal/m", false),
            ("http://hub.example/m", "http://0x7f.1/m", false),
            ("http://8.8.8.8/m", "http://192.168.1.1/m", false),
            ("http://127.0.0.1:1/m", "http://127.0.0.1:2/m", true),
            ("http://localhost/m", "http://10.0.0.1/m", true),
            ("http://minio/m", "http://10.0.0.1/m", true),
        ];
        for (from, to, expected) in cases {
            let found = allowed(&[url(from)], &url(to), Redirects::Web);
            assert_eq!(found.is_ok(), expected, "{from} -> {to}");
        }
        // Where a chain began decides, not the host in between.
        let chain = [url("http://hub.example/"), url("http://cdn.example/")];
        assert!(allowed(&chain, &url("http://10.0.0.1/"), Redirects::Web).is_err());
        let many = vec![url("http://hub.example/"); REDIRECTS + 1];
        assert!(allowed(&many, &url("http://hub.example/"), Redirects::Web).is_err());
        assert!(allowed(&many[1..], &url("http://hub.example/"), Redirects::Web).is_ok());
        // Stores stay where they are.
        let store = [url("https://bucket.s3.example/k")];
        assert!(allowed(&store, &url("https://bucket.s3.example/other"), Redirects::SameOrigin).is_ok());
        assert!(allowed(&store, &url("https://evil.example/k"), Redirects::SameOrigin).is_err());
        assert!(allowed(&store, &url("https://bucket.s3.example:444/k"), Redirects::SameOrigin).is_err());
    }

    #[test]
    fn names_of_redirects_are_not_private_either() {
        let run = |resolver: &Resolver, name: &str| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(resolver.resolve(name.parse().unwrap())).map(|addresses| addresses.count())
        };
        assert!(run(&Resolver::new(Some("hub.example")), "localhost").is_err());
        assert!(run(&Resolver::new(Some("localhost")), "localhost").is_ok());
        assert!(run(&Resolver::new(Some("127.0.0.1")), "localhost").is_ok());
        assert!(run(&Resolver::new(None), "localhost").is_ok());
    }

    #[test]
    fn links_name_the_next_page() {
        let next = |link: &str| NextPage::parse(link).map(|next| next.0);
        let url = Some("https://hub.example/api?cursor=a,b".to_owned());
        assert_eq!(next(r#"<https://hub.example/api?cursor=a,b>; rel="next""#), url);
        assert_eq!(next("<https://x>; rel=\"prev\", <https://hub.example/api?cursor=a,b>; rel=next"), url);
        for other in
            ["", "<https://x>", "https://x; rel=\"next\"", "<https://x; rel=\"next\"", "<x>; rel=last"]
        {
            assert_eq!(next(other), None, "{other}");
        }
    }

    #[test]
    fn ranges_say_how_long_a_body_may_be() {
        for (range, expected) in [
            ("bytes=0-9", Some(10)),
            ("bytes=5-5", Some(1)),
            ("bytes=-7", Some(7)),
            ("bytes=7-", None),
            ("bytes=9-3", None),
            ("bytes=0-18446744073709551615", None),
            ("rows=1-2", None),
            ("", None),
        ] {
            assert_eq!(range_len(range), expected, "{range}");
        }
    }
}
