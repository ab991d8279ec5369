//! Runs the `peregrine` program the way a person does.

#![allow(dead_code, reason = "each test uses a part")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// How long something may take that must come; a loaded machine is slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program with a home directory and an environment of its own.
pub(crate) struct Program {
    home: TempDir,
    env: Vec<(String, String)>,
}

/// What a run gave.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Program {
    pub(crate) fn new() -> Self {
        let home = tempfile::Builder::new().prefix("peregrine-home-").tempdir().unwrap();
        Self { home, env: vec![] }
    }

    /// Sets a variable of the environment for all later runs.
    pub(crate) fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.env.push((name.to_owned(), value.to_string()));
        self
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// Where it keeps the regtest index.
    pub(crate) fn index_dir(&self) -> PathBuf {
        self.home.path().join(".peregrine/regtest/tweaks")
    }

    /// Writes a file into the home directory; its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn command(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_peregrine"));
        command
            .args(args)
            .env_clear()
            .env("HOME", self.home.path())
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(self.home.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run<const N: usize>(&self, args: [&str; N]) -> Output {
        output(&mut self.command(args))
    }

    /// Runs a command that must succeed and print JSON.
    pub(crate) fn json<const N: usize>(&self, args: [&str; N]) -> Value {
        self.run(args).good().json()
    }

    /// Starts a command whose lines are read while it runs.
    pub(crate) fn start<const N: usize>(&self, args: [&str; N]) -> Live {
        Live::new(self.command(args))
    }
}

/// Runs a command with this standard input to its end.
pub(crate) fn output_with_input(mut command: Command, input: &str) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A program that doesn't read it closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    Output::new(child.wait_with_output().unwrap())
}

/// Runs a command to its end.
pub(crate) fn output(command: &mut Command) -> Output {
    Output::new(command.output().unwrap())
}

impl Output {
    fn new(output: std::process::Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// The run must have succeeded.
    pub(crate) fn good(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// The run must have failed with this code; the error, which holds all of these texts.
    pub(crate) fn fails<const N: usize>(self, code: i32, texts: [&str; N]) -> String {
        assert_eq!(self.code, Some(code), "{self:#?}");
        for text in texts {
            assert!(self.stderr.contains(text), "no '{text}' in: {}", self.stderr);
        }
        self.stderr
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// A program that runs. Dropping it kills it.
pub(crate) struct Live {
    child: Child,
    lines: Receiver<String>,
    /// Every line so far, of both streams.
    seen: Vec<String>,
}

impl Live {
    pub(crate) fn new(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let streams: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for stream in streams {
            let sender = sender.clone();
            thread::spawn(move || {
                BufReader::new(stream).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
            });
        }
        Self { child, lines, seen: vec![] }
    }

    /// Waits for a line that isn't read yet; `None` when the program ends first.
    pub(crate) fn find_line(&mut self, wanted: impl Fn(&str) -> bool) -> Option<String> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if wanted(&line) {
                        return Some(line);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => panic!("the line doesn't come; so far: {:#?}", self.seen),
            }
        }
    }

    /// Waits for a line that has all of these texts.
    pub(crate) fn line<const N: usize>(&mut self, texts: [&str; N]) -> String {
        self.find_line(|line| texts.iter().all(|text| line.contains(text)))
            .unwrap_or_else(|| panic!("the program ended without a line with {texts:?}: {:#?}", self.seen))
    }

    /// Waits for an event of `index --json`; `None` when the program ends first.
    pub(crate) fn find_event(&mut self, name: &str, wanted: impl Fn(&Value) -> bool) -> Option<Value> {
        let parse = |line: &str| {
            let event: Value = serde_json::from_str(line).ok()?;
            (event["event"] == name && wanted(&event)).then_some(event)
        };
        self.find_line(|line| parse(line).is_some()).and_then(|line| parse(&line))
    }

    /// Waits for an event of `index --json`.
    pub(crate) fn event(&mut self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.find_event(name, wanted)
            .unwrap_or_else(|| panic!("the program ended without the event '{name}': {:#?}", self.seen))
    }

    /// Waits until the index has the tip at this height.
    pub(crate) fn at_tip(&mut self, height: u32) {
        self.event("at_tip", |event| event["height"] == height);
    }

    /// Everything that it has printed so far.
    pub(crate) fn printed(&mut self) -> String {
        self.seen.extend(self.lines.try_iter());
        self.seen.join("\n")
    }

    /// Asks it to end, as `kill` does.
    pub(crate) fn terminate(&self) {
        let script = format!("kill -TERM {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    }

    /// SIGKILL. What the program ended with, if it had ended before.
    pub(crate) fn kill(mut self) -> Option<ExitStatus> {
        let ended = self.child.try_wait().unwrap();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        ended
    }

    /// Waits until it ends; its exit code.
    pub(crate) fn exit_code(mut self) -> Option<i32> {
        // The streams end with the program.
        while self.find_line(|_| false).is_some() {}
        self.child.wait().unwrap().code()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
