//! Network namespaces that are joined by a bridge.

use std::process::{Command, Output};

pub(crate) struct Namespaces {
    prefix: String,
    names: Vec<String>,
    owned: bool,
}

fn ip(arguments: &[&str]) -> Result<Output, String> {
    let output = Command::new("ip").args(arguments).output().map_err(|e| format!("ip: {e}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(format!("ip {}: {words}", arguments.join(" ")))
}

impl Namespaces {
    /// One for each of these, the n-th with the address 10.77.0.n, and one for the bridge.
    pub(crate) fn new(names: &[&str]) -> Result<Self, String> {
        let prefix = format!("bg{}", std::process::id());
        let mut spaces = Self { prefix, names: Vec::new(), owned: true };
        let hub = spaces.name("hub");
        ip(&["netns", "add", &hub])?;
        spaces.names.push("hub".to_owned());
        ip(&["-n", &hub, "link", "add", "br0", "type", "bridge"])?;
        ip(&["-n", &hub, "link", "set", "br0", "up"])?;
        for (n, name) in names.iter().enumerate() {
            let space = spaces.name(name);
            ip(&["netns", "add", &space])?;
            spaces.names.push((*name).to_owned());
            let port = format!("v-{name}");
            let at = format!("10.77.0.{}/24", n + 1);
            ip(&[
                "-n", &hub, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns",
                &space,
            ])?;
            ip(&["-n", &hub, "link", "set", &port, "master", "br0", "up"])?;
            ip(&["-n", &space, "addr", "add", &at, "dev", "eth0"])?;
            ip(&["-n", &space, "link", "set", "eth0", "up"])?;
            ip(&["-n", &space, "link", "set", "lo", "up"])?;
        }
        Ok(spaces)
    }

    /// Those that another process made.
    pub(crate) fn of(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), names: Vec::new(), owned: false }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The name of a namespace for `ip netns`.
    pub(crate) fn name(&self, of: &str) -> String {
        format!("{}{of}", self.prefix)
    }

    /// Takes the cable of a namespace out of the bridge, or puts it in.
    pub(crate) fn cable(&self, of: &str, up: bool) {
        let state = if up { "up" } else { "down" };
        ip(&["-n", &self.name("hub"), "link", "set", &format!("v-{of}"), state]).unwrap();
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        if self.owned {
            for name in self.names.iter().rev() {
                let _ = ip(&["netns", "delete", &self.name(name)]);
            }
        }
    }
}
