//! What a link costs beside a bare socket: one stream between two processes on loopback.
//!
//! ```sh
//! cargo bench -p brigade-actors --features grpc --bench link            # all, about two minutes
//! cargo bench -p brigade-actors --features grpc --bench link -- grpc-tls 1048576
//! ```
//!
//! Kinds: `tcp` (`TcpStream`), `rustls` (the same with mutual TLS 1.3, rustls on the calling thread),
//! `grpc` (a link, plaintext), `grpc-tls` (a link, mutual TLS 1.3). Latency is half of the time that a
//! frame takes there and back, median of a round; throughput is from the first frame sent to the word
//! that the last one is there. Each number is the median of five rounds, and the kinds take turns.
//! The receiver has each payload in one piece of memory that it uses again, and reads from every cache
//! line of it. CPU is that of both processes, user and system.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::panic)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use brigade_actors::transport::authority::Authority;
use brigade_actors::transport::{
    Accept, Frame, Incoming, Link, LinkError, Security, TransportOptions, transport,
};
use crossbeam_channel::{Sender, bounded};
use tokio_rustls::rustls;

const ROUNDS: usize = 5;
const KINDS: [&str; 4] = ["tcp", "rustls", "grpc", "grpc-tls"];
/// Frames that may be on their way at once, as credits would have it.
const WINDOW: usize = 8;
const LATENCY: usize = 4096;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    if let Some((first, rest)) = args.split_first()
        && first == "sink"
    {
        return sink(rest);
    }
    let folder = tempfile::tempdir().unwrap();
    let day = Duration::from_secs(24 * 3600);
    let authority = Authority::new("bench", day).unwrap();
    authority.write(folder.path()).unwrap();
    for name in ["source", "sink"] {
        authority.issue(name, &["127.0.0.1"], day).unwrap().write(folder.path()).unwrap();
    }
    let folder = folder.path().to_str().unwrap().to_owned();
    let wanted = |name: &str| {
        let filters: Vec<_> = args.iter().filter(|a| a.parse::<usize>().is_err()).collect();
        filters.is_empty() || filters.iter().any(|f| *f == name)
    };
    let sizes: Vec<usize> = args.iter().filter_map(|a| a.parse().ok()).collect();
    println!("medians of {ROUNDS}, taking turns; two processes on loopback, {} CPUs", cpus());
    println!("{:>9} {:>9} {:>12} {:>9} {:>9}", "bytes", "kind", "", "x rustls", "CPU s/GB");
    for size in [LATENCY, 1 << 20, 16 << 20] {
        if !sizes.is_empty() && !sizes.contains(&size) {
            continue;
        }
        let mut rounds: Vec<(&str, Vec<f64>, Vec<f64>)> = KINDS
            .into_iter()
            .filter(|kind| wanted(kind))
            .map(|kind| (kind, Vec::new(), Vec::new()))
            .collect();
        for _ in 0..ROUNDS {
            for (kind, figures, cpu) in &mut rounds {
                let before = cpu_seconds();
                let (figure, theirs) = round(kind, size, &folder);
                figures.push(figure);
                cpu.push(cpu_seconds() - before + theirs);
            }
        }
        let reference = rounds
            .iter()
            .find(|(kind, ..)| *kind == "rustls")
            .map(|(_, figures, _)| median(figures));
        for (kind, figures, cpu) in &rounds {
            let figure = median(figures);
            let ratio = reference.map_or_else(String::new, |r| format!("{:.2}", figure / r));
            if size == LATENCY {
                println!("{size:>9} {kind:>9} {:>9.1} us {ratio:>9}", figure * 1e6);
            } else {
                let per_gb = median(cpu) / (size * frames(size)) as f64 * 1e9;
                println!("{size:>9} {kind:>9} {:>7.0} MB/s {ratio:>9} {per_gb:>9.2}", figure / 1e6);
            }
        }
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Frames of a round.
fn frames(size: usize) -> usize {
    if size == LATENCY { 4000 } else { (512_usize << 20) / size }
}

/// The CPU time of this process, in seconds.
fn cpu_seconds() -> f64 {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return f64::NAN };
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // In ticks, of which Linux has 100 a second.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// Reads of every cache line.
fn touch(bytes: &[u8]) {
    let sum = bytes.iter().step_by(64).fold(0_u64, |sum, byte| sum.wrapping_add((*byte).into()));
    std::hint::black_box(sum);
}

struct Sink(Child, BufReader<std::process::ChildStdout>);

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Sink {
    fn start(kind: &str, size: usize, folder: &str) -> (Self, String) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["sink", kind, &size.to_string(), folder])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut sink = Self(child, out);
        let address = sink.line();
        (sink, address)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

/// Seconds, or bytes a second; and the CPU seconds of the other process.
fn round(kind: &str, size: usize, folder: &str) -> (f64, f64) {
    let (mut sink, address) = Sink::start(kind, size, folder);
    let figure = match kind {
        "tcp" => {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.set_nodelay(true).unwrap();
            bare(&mut stream, size)
        }
        "rustls" => {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.set_nodelay(true).unwrap();
            let name = "127.0.0.1".try_into().unwrap();
            let mut tls = rustls::ClientConnection::new(configs(folder, "source").1, name).unwrap();
            bare(&mut rustls::Stream::new(&mut tls, &mut stream), size)
        }
        _ => linked(&address, kind, size, folder),
    };
    let theirs = sink.line().parse().unwrap();
    (figure, theirs)
}

fn sink(args: &[String]) {
    let [kind, size, folder] = args else { panic!("{args:?}") };
    let size: usize = size.parse().unwrap();
    match kind.as_str() {
        "tcp" | "rustls" => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            say(&listener.local_addr().unwrap().to_string());
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            if kind == "tcp" {
                bare_sink(&mut stream, size);
            } else {
                let mut tls = rustls::ServerConnection::new(configs(folder, "sink").0).unwrap();
                bare_sink(&mut rustls::Stream::new(&mut tls, &mut stream), size);
            }
        }
        _ => link_sink(kind, size, folder),
    }
}

/// Frames on a bare stream: a length and so many bytes.
fn bare(stream: &mut (impl Read + Write), size: usize) -> f64 {
    let payload = vec![7_u8; size];
    let mut buffer = vec![0_u8; size];
    if size == LATENCY {
        let mut times = Vec::new();
        for _ in 0..frames(size) {
            let begun = Instant::now();
            send(stream, &payload);
            receive(stream, &mut buffer);
            times.push(begun.elapsed().as_secs_f64() / 2.0);
        }
        return median(&times);
    }
    // The handshake first.
    send(stream, &payload);
    stream.read_exact(&mut [0]).unwrap();
    let begun = Instant::now();
    for _ in 0..frames(size) {
        send(stream, &payload);
    }
    stream.read_exact(&mut [0]).unwrap();
    (size * frames(size)) as f64 / begun.elapsed().as_secs_f64()
}

fn send(stream: &mut impl Write, payload: &[u8]) {
    stream.write_all(&(payload.len() as u64).to_le_bytes()).unwrap();
    stream.write_all(payload).unwrap();
    stream.flush().unwrap();
}

fn receive(stream: &mut impl Read, buffer: &mut [u8]) {
    stream.read_exact(&mut [0; 8]).unwrap();
    stream.read_exact(buffer).unwrap();
    touch(buffer);
}

fn bare_sink(stream: &mut (impl Read + Write), size: usize) {
    let mut buffer = vec![0_u8; size];
    if size == LATENCY {
        for _ in 0..frames(size) {
            receive(stream, &mut buffer);
            send(stream, &buffer);
        }
    } else {
        receive(stream, &mut buffer);
        stream.write_all(&[1]).unwrap();
        stream.flush().unwrap();
        for _ in 0..frames(size) {
            receive(stream, &mut buffer);
        }
        stream.write_all(&[1]).unwrap();
        stream.flush().unwrap();
    }
    say(&cpu_seconds().to_string());
}

fn configs(folder: &str, name: &str) -> (Arc<rustls::ServerConfig>, Arc<rustls::ClientConfig>) {
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let read = |file: String| std::fs::read(format!("{folder}/{file}")).unwrap();
    let certificates = |pem: &[u8]| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(pem).map(Result::unwrap).collect()
    };
    let mut roots = rustls::RootCertStore::empty();
    for root in certificates(&read("authority.pem".to_owned())) {
        roots.add(root).unwrap();
    }
    let roots = Arc::new(roots);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = certificates(&read(format!("{name}.pem")));
    let key = PrivateKeyDer::from_pem_slice(&read(format!("{name}.key"))).unwrap();
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::clone(&roots),
        Arc::clone(&provider),
    )
    .build()
    .unwrap();
    let versions = &[&rustls::version::TLS13];
    let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())
        .unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    (Arc::new(server), Arc::new(client))
}

fn options(kind: &str, folder: &str, name: &str) -> TransportOptions {
    let options = TransportOptions::new();
    if kind == "grpc" {
        return options;
    }
    options.security(Security::MutualFiles {
        authority: format!("{folder}/authority.pem").into(),
        certificate: format!("{folder}/{name}.pem").into(),
        key: format!("{folder}/{name}.key").into(),
    })
}

/// Buffers that are used again.
type Pool = Arc<Mutex<Vec<Vec<u8>>>>;

/// What is done with a payload that has come.
type Done = Arc<dyn Fn(&[u8]) + Send + Sync>;

struct Taker {
    pool: Pool,
    done: Done,
}

struct Taken {
    bytes: Vec<u8>,
    pool: Pool,
    done: Done,
}

impl Accept for Taker {
    fn accept(&mut self, _: &[u8], length: u64) -> Result<Box<dyn Incoming>, LinkError> {
        let mut bytes = self.pool.lock().unwrap().pop().unwrap_or_default();
        bytes.resize(length as usize, 0);
        Ok(Box::new(Taken { bytes, pool: Arc::clone(&self.pool), done: Arc::clone(&self.done) }))
    }

    fn closed(&mut self, _: LinkError) {}
}

impl Incoming for Taken {
    fn buffer(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn complete(self: Box<Self>) {
        touch(&self.bytes);
        (self.done)(&self.bytes);
        self.pool.lock().unwrap().push(self.bytes);
    }
}

fn taker(done: impl Fn(&[u8]) + Send + Sync + 'static) -> Box<dyn Accept> {
    Box::new(Taker { pool: Pool::default(), done: Arc::new(done) })
}

/// Frees a slot of the window when the payload has left.
struct Sent(Arc<Vec<u8>>, Sender<()>);

impl brigade_actors::transport::Bytes for Sent {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let _ = self.1.try_send(());
    }
}

/// Frames on a link; answers come to a channel that this thread waits at.
fn linked(address: &str, kind: &str, size: usize, folder: &str) -> f64 {
    let grpc = (transport("grpc").unwrap().open)(&options(kind, folder, "source")).unwrap();
    let (sender, answers) = bounded(1);
    let accept = taker(move |_| sender.send(()).unwrap());
    let link = grpc.connect(address, accept, Instant::now() + Duration::from_secs(10)).unwrap();
    let payload = Arc::new(vec![7_u8; size]);
    let wait = || answers.recv_timeout(Duration::from_secs(60)).unwrap();
    let (left, room) = bounded(WINDOW);
    for _ in 0..WINDOW {
        left.send(()).unwrap();
    }
    let head = vec![1; 64];
    let send = |link: &Link| {
        room.recv().unwrap();
        let payload = Sent(Arc::clone(&payload), left.clone());
        link.send(Frame::new(head.clone(), payload)).unwrap();
    };
    if size == LATENCY {
        let mut times = Vec::new();
        for _ in 0..frames(size) {
            let begun = Instant::now();
            send(&link);
            wait();
            times.push(begun.elapsed().as_secs_f64() / 2.0);
        }
        return median(&times);
    }
    send(&link);
    wait();
    let begun = Instant::now();
    for _ in 0..frames(size) {
        send(&link);
    }
    wait();
    (size * frames(size)) as f64 / begun.elapsed().as_secs_f64()
}

fn link_sink(kind: &str, size: usize, folder: &str) {
    let grpc = (transport("grpc").unwrap().open)(&options(kind, folder, "sink")).unwrap();
    let (sender, over) = bounded(1);
    let links = Mutex::new(Vec::new());
    let listening = grpc
        .listen(
            "127.0.0.1:0",
            Arc::new(move |link: Link| {
                links.lock().unwrap().push(link.clone());
                let count = std::sync::atomic::AtomicUsize::new(0);
                let sender = sender.clone();
                Ok(taker(move |bytes| {
                    let count = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
                    if size == LATENCY {
                        link.send(Frame::new(vec![1; 64], bytes.to_vec())).unwrap();
                        if count == frames(size) {
                            sender.send(()).unwrap();
                        }
                    } else if count == 1 {
                        link.send(Frame::head(vec![1])).unwrap();
                    } else if count == frames(size) + 1 {
                        link.send(Frame::head(vec![1])).unwrap();
                        sender.send(()).unwrap();
                    }
                }))
            }),
        )
        .unwrap();
    say(&listening.address());
    over.recv_timeout(Duration::from_secs(120)).unwrap();
    say(&cpu_seconds().to_string());
    // The last frame is on its way yet; the source ends this process.
    std::thread::sleep(Duration::from_secs(10));
}
