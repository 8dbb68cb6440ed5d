//! `download-hf`, against a small server that speaks the Hub's paths.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::support::{Place, Run};

/// What the server holds and what it was asked.
#[derive(Default)]
struct Hub {
    listing: String,
    files: Vec<(String, Vec<u8>)>,
    /// Requests: path and range.
    asked: Mutex<Vec<(String, Option<u64>)>>,
    token: Option<&'static str>,
    /// Responses stop after this many bytes of a file, this often.
    cuts: Mutex<u32>,
    /// Where files really are: requests for them are redirected there.
    elsewhere: Option<String>,
    /// Whether every page of the listing names another one.
    endless: bool,
    /// Authorization headers that came, of all requests.
    tokens: Mutex<Vec<Option<String>>>,
}

const CUT: usize = 1000;

impl Hub {
    fn new(files: &[(&str, Vec<u8>)]) -> Hub {
        let entries: Vec<String> = files
            .iter()
            .map(|(name, bytes)| format!(r#"{{"type": "file", "path": "{name}", "size": {}}}"#, bytes.len()))
            .collect();
        Hub {
            listing: format!(r#"[{{"type": "directory", "path": "onnx"}}, {}]"#, entries.join(", ")),
            files: files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect(),
            ..Hub::default()
        }
    }

    /// Serves until the test is over; returns the address.
    fn start(self: &Arc<Hub>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let hub = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                hub.answer(stream.unwrap());
            }
        });
        address
    }

    fn answer(&self, mut stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let Some(Ok(first)) = lines.next() else { return };
        let path = first.split(' ').nth(1).unwrap().to_owned();
        let headers: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        let header = |name: &str| {
            let find = |line: &String| {
                let (key, value) = line.split_once(": ")?;
                key.eq_ignore_ascii_case(name).then(|| value.to_owned())
            };
            headers.iter().find_map(find)
        };
        let start = header("range").map(|range| {
            range.strip_prefix("bytes=").and_then(|range| range.strip_suffix('-')).unwrap().parse().unwrap()
        });
        self.asked.lock().unwrap().push((path.clone(), start));
        self.tokens.lock().unwrap().push(header("authorization"));
        let mut send = |status: &str, more: &str, length: usize, body: &[u8]| {
            let head =
                format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{more}\r\n");
            // The client may have gone away already.
            let _ = stream.write_all(&[head.as_bytes(), body].concat());
        };
        if self.token.is_some_and(|token| header("authorization") != Some(format!("Bearer {token}"))) {
            return send("401 Unauthorized", "", 0, b"");
        }
        if self.endless && path.starts_with("/api/models/owner/model/tree/main") {
            let (host, count) = (header("host").unwrap(), self.asked.lock().unwrap().len());
            let next = format!("http://{host}/api/models/owner/model/tree/main?page={count}");
            let link = format!("Link: <{next}>; rel=\"next\"\r\n");
            return send("200 OK", &link, self.listing.len(), self.listing.as_bytes());
        }
        if path == "/api/models/owner/model/tree/main" {
            return send("200 OK", "", self.listing.len(), self.listing.as_bytes());
        }
        if let Some(place) = &self.elsewhere {
            return send("302 Found", &format!("Location: {place}{path}\r\n"), 0, b"");
        }
        let name = path.strip_prefix("/owner/model/resolve/main/");
        let Some((_, bytes)) = name.and_then(|name| self.files.iter().find(|(known, _)| known == name))
        else {
            return send("404 Not Found", "", 0, b"");
        };
        let from = start.unwrap_or(0) as usize;
        let rest = &bytes[from..];
        let mut cuts = self.cuts.lock().unwrap();
        let sent = match *cuts > 0 && rest.len() > CUT {
            true => {
                *cuts -= 1;
                &rest[..CUT]
            }
            false => rest,
        };
        match start {
            Some(_) => {
                let range = format!("Content-Range: bytes {from}-{}/{}\r\n", bytes.len() - 1, bytes.len());
                send("206 Partial Content", &range, rest.len(), sent);
            }
            None => send("200 OK", "", rest.len(), sent),
        }
    }
}

fn download(place: &Place, endpoint: &str, args: &[&str]) -> Run {
    let args = [&["download-hf", "owner/model", "-o", "got"], args].concat();
    let mut command = place.command(&args);
    command.env("HF_ENDPOINT", endpoint).env_remove("HF_TOKEN");
    for proxy in ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        command.env_remove(proxy);
    }
    command.output().unwrap().into()
}

/// Two shards, their index, a configuration, and files that are not wanted.
fn model(place: &Place) -> Vec<(&'static str, Vec<u8>)> {
    let mut files = Vec::new();
    for (tensor, file) in
        [("a", "model-00001-of-00002.safetensors"), ("b", "model-00002-of-00002.safetensors")]
    {
        place.single("x.zt", tensor, &[0.5; 2000]);
        place.run(&["convert", "x.zt", "-o", file]).ends(0);
        files.push((file, std::fs::read(place.path(file)).unwrap()));
        std::fs::remove_file(place.path(file)).unwrap();
        std::fs::remove_file(place.path("x.zt")).unwrap();
    }
    let index = r#"{"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors"}}"#;
    files.push(("model.safetensors.index.json", index.into()));
    files.push(("config.json", b"{}".to_vec()));
    files.push(("pytorch_model.bin", b"unwanted".to_vec()));
    files.push(("onnx/model.safetensors", b"unwanted".to_vec()));
    files
}

fn got(place: &Place) -> Vec<String> {
    let entries = std::fs::read_dir(place.path("got")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_listing_without_end_is_refused() {
    let place = Place::new();
    let hub = Arc::new(Hub { endless: true, ..Hub::new(&[("config.json", b"{}".to_vec())]) });
    download(&place, &hub.start(), &[]).fails(3, &["more than 1000 pages"]);
    assert_eq!(hub.asked.lock().unwrap().len(), 1000);
}

#[test]
fn a_model_is_downloaded_once() {
    let place = Place::new();
    let hub = Arc::new(Hub::new(&model(&place)));
    let endpoint = hub.start();
    let run = download(&place, &endpoint, &[]).ends(0);
    assert!(run.err.contains("4 files") && run.err.contains("4 new"), "{}", run.err);
    let names = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ];
    assert_eq!(got(&place), names);
    assert_eq!(place.run(&["info", "got", "--json"]).ends(0).json()["totals"]["elements"], 4000);
    let asked = hub.asked.lock().unwrap().len();
    let again = download(&place, &endpoint, &[]).ends(0);
    assert!(again.err.contains("0 new"), "{}", again.err);
    assert_eq!(hub.asked.lock().unwrap().len(), asked + 1, "only the list was asked for again");
    std::fs::write(place.path("got/config.json"), "mine").unwrap();
    download(&place, &endpoint, &[]).fails(2, &["config.json"]);
    assert_eq!(std::fs::read(place.path("got/config.json")).unwrap(), b"mine");
}

#[test]
fn a_download_goes_on_where_it_stopped() {
    let place = Place::new();
    let files = model(&place);
    let hub = Hub::new(&files);
    *hub.cuts.lock().unwrap() = 2;
    let hub = Arc::new(hub);
    let endpoint = hub.start();
    std::fs::create_dir(place.path("got")).unwrap();
    let (second, bytes) = &files[1];
    std::fs::write(place.path(&format!("got/{second}.part")), &bytes[..500]).unwrap();
    download(&place, &endpoint, &["-q"]).ends(0);
    for (name, bytes) in &files[..2] {
        assert_eq!(&std::fs::read(place.path(&format!("got/{name}"))).unwrap(), bytes);
    }
    let ranges: Vec<Option<u64>> = hub.asked.lock().unwrap().iter().map(|(_, range)| *range).collect();
    assert!(ranges.contains(&Some(1000)) && ranges.contains(&Some(2000)), "{ranges:?}");
    assert!(ranges.contains(&Some(500)), "{ranges:?}");
    assert!(got(&place).iter().all(|name| !name.ends_with(".part")));
}

#[cfg(unix)]
#[test]
fn a_download_writes_through_no_link() {
    let place = Place::new();
    let files = model(&place);
    let endpoint = Arc::new(Hub::new(&files)).start();
    std::fs::create_dir(place.path("got")).unwrap();
    std::fs::write(place.path("precious"), b"keep").unwrap();
    let part = place.path(&format!("got/{}.part", files[0].0));
    std::os::unix::fs::symlink("../precious", &part).unwrap();
    download(&place, &endpoint, &["-q"]).fails(4, &["symbolic link", ".part"]);
    assert_eq!(std::fs::read(place.path("precious")).unwrap(), b"keep");
    // Nor is a part that others can write to gone on with.
    std::fs::remove_file(&part).unwrap();
    std::fs::write(&part, [7; 500]).unwrap();
    std::fs::set_permissions(&part, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    download(&place, &endpoint, &["-q"]).fails(4, &["other users can write", ".part"]);
    std::fs::remove_file(&part).unwrap();
    // A link by the name of the file itself is there already, whatever it leads to.
    std::os::unix::fs::symlink("../planted", place.path(&format!("got/{}", files[0].0))).unwrap();
    assert_ne!(download(&place, &endpoint, &["-q"]).code, 0);
    assert!(!place.path("planted").exists());
}

#[test]
fn shards_become_one_compressed_file() {
    let place = Place::new();
    let endpoint = Arc::new(Hub::new(&model(&place))).start();
    download(&place, &endpoint, &["-c"]).ends(0);
    assert_eq!(got(&place), ["config.json", "model.zt"]);
    let reader = ztensor::open(place.path("got/model.zt")).unwrap();
    assert_eq!(reader.read_as::<f32>("b").unwrap(), [0.5; 2000]);
    download(&place, &endpoint, &["-c"]).fails(2, &["model.zt"]);
}

#[test]
fn tokens_are_sent() {
    let place = Place::new();
    let mut hub = Hub::new(&model(&place));
    hub.token = Some("secret");
    let endpoint = Arc::new(hub).start();
    download(&place, &endpoint, &[]).fails(2, &["HF_TOKEN"]);
    assert!(place.list().is_empty());
    download(&place, &endpoint, &["--token", "secret"]).ends(0);
}

#[test]
fn files_on_other_servers_are_fetched_without_the_token() {
    let place = Place::new();
    let files = model(&place);
    let mut store = Hub::new(&files);
    store.cuts = Mutex::new(2);
    let store = Arc::new(store);
    let mut hub = Hub::new(&files);
    hub.token = Some("secret");
    hub.elsewhere = Some(store.start());
    let hub = Arc::new(hub);
    let endpoint = hub.start();
    download(&place, &endpoint, &["--token", "secret"]).ends(0);
    assert_eq!(got(&place).len(), 4);
    assert!(hub.tokens.lock().unwrap().iter().all(Option::is_some));
    assert!(store.tokens.lock().unwrap().iter().all(Option::is_none), "another server is not told");
    // What was cut off there goes on there.
    let ranges: Vec<_> = store.asked.lock().unwrap().iter().filter_map(|(_, start)| *start).collect();
    assert_eq!(ranges, [CUT as u64, 2 * CUT as u64]);
    place.run(&["verify", "got"]).ends(0);
}

#[test]
fn redirects_end() {
    let place = Place::new();
    let mut hub = Hub::new(&model(&place));
    // To the same paths of the same server, which needs the token there, too.
    hub.elsewhere = Some(String::new());
    hub.token = Some("secret");
    let hub = Arc::new(hub);
    let endpoint = hub.start();
    download(&place, &endpoint, &["--token", "secret"]).fails(4, &["redirected"]);
    assert!(hub.tokens.lock().unwrap().iter().all(Option::is_some));
    let mut hub = Hub::new(&model(&place));
    hub.elsewhere = Some("ftp://elsewhere".to_owned());
    download(&place, &Arc::new(hub).start(), &[]).fails(3, &["redirects"]);
}

#[test]
fn what_servers_say_is_not_believed() {
    let place = Place::new();
    for path in
        ["../evil.safetensors", "/tmp/evil.safetensors", "a/../../evil.safetensors", "..\\\\evil.json"]
    {
        let mut hub = Hub::new(&[]);
        hub.listing = format!(r#"[{{"type": "file", "path": "{path}", "size": 4}}]"#);
        download(&place, &Arc::new(hub).start(), &[]).fails(3, &["evil"]);
    }
    for (listing, code) in [("{}", 3), ("[1]", 3), ("nonsense", 3), ("[]", 2)] {
        let mut hub = Hub::new(&[]);
        hub.listing = listing.to_owned();
        download(&place, &Arc::new(hub).start(), &[]).ends(code);
    }
    assert!(place.list().is_empty());
    // A digest that does not agree.
    let mut hub = Hub::new(&[("m.safetensors", b"1234".to_vec())]);
    hub.listing =
        format!(r#"[{{"type": "file", "path": "m.safetensors", "size": 4, "lfs": {{"oid": "{:064}"}}}}]"#, 0);
    download(&place, &Arc::new(hub).start(), &[]).fails(3, &["m.safetensors", "damaged"]);
    assert!(got(&place).is_empty());
    // A refused connection, and a model that does not exist.
    download(&place, "http://127.0.0.1:1", &[]).fails(4, &["127.0.0.1:1"]);
    place.run(&["download-hf", "../model", "-o", "got"]).fails(2, &["owner/name"]);
}
