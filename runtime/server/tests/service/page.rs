//! The page at `/`, through headless Chromium.
//!
//! `infra/install-test-tools` installs Chromium (Debian) and Playwright (npm); without them
//! this says so and passes, unless `WARPLINE_REQUIRE_CHROMIUM` is set.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use crate::server::{PATIENCE, Server, long, one_row};

const CHROMIUM: &str = "/usr/bin/chromium";

fn playwright() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let folder = cache.or(home)?.join("warpline/tools/playwright-1.64.1");
    let is_there =
        folder.join("node_modules/playwright-core").exists() && Path::new(CHROMIUM).exists();
    is_there.then_some(folder)
}

#[tokio::test]
async fn the_page_shows_batches_and_acts_on_them() {
    let Some(playwright) = playwright() else {
        let told =
            "Chromium or Playwright is not installed; infra/install-test-tools installs them";
        assert!(
            std::env::var_os("WARPLINE_REQUIRE_CHROMIUM").is_none(),
            "{told}"
        );
        eprintln!("skipped: {told}");
        return;
    };
    let server = Server::start();
    let lake = server.lake();
    server
        .accept("done", &one_row(&lake, "done", "error"))
        .await;
    server
        .accept(
            "wrong",
            &one_row(&lake, "wrong", "error").replace("42 AS answer", "x FROM nowhere"),
        )
        .await;
    let shown = one_row(&lake, "x", "error")
        .replace("SELECT 42", "SELECT '<img src=x onerror=window.hacked=1>'");
    let shown = shown
        .split("    output:")
        .next()
        .expect("a part")
        .to_owned();
    server.accept("hostile", &shown).await;
    for id in ["done", "wrong", "hostile"] {
        server.end_of(id).await;
    }
    server.accept("running", &long(&lake, "running")).await;
    server.running("running").await;
    let trigger = format!(
        "name: arrivals\nsource: {{webhook: {{}}}}\nbatch: |\n{}",
        indented(&one_row(&lake, "y", "error"))
    );
    let made = reqwest::Client::new()
        .post(format!("{}/v1/triggers", server.url()))
        .header("content-type", "application/yaml")
        .body(trigger)
        .send()
        .await
        .expect("an answer");
    let made: serde_json::Value = made.json().await.expect("JSON");
    let token = made["webhook_token"]
        .as_str()
        .unwrap_or_else(|| panic!("{made}"));
    let path = format!("/v1/triggers/arrivals/events?token={token}");
    Server::expect(
        server
            .send(reqwest::Method::POST, &path, Some(json!({"poison": 1})))
            .await,
        200,
    );

    let output = Command::new(env!("CARGO_BIN_EXE_warpline"))
        .args(["tokens", "new", "--owner", "ada"])
        .output()
        .expect("warpline starts");
    let told = String::from_utf8(output.stderr).expect("text");
    let entry = told
        .lines()
        .find(|line| line.contains("sha256"))
        .expect("an entry");
    let mut guarded = Server::prepare(&[]);
    let tokens = guarded.folder().join("tokens.yaml");
    std::fs::write(&tokens, format!("tokens:\n{entry}\n")).expect("a file");
    guarded.add_argument("--token-file");
    guarded.add_argument(&tokens.display().to_string());
    guarded.launch();

    let mut looks = tokio::process::Command::new("node")
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/service/page.mjs"
        ))
        .arg(&playwright)
        .args([CHROMIUM, &guarded.url(), &server.url()])
        .arg(String::from_utf8(output.stdout).expect("text").trim())
        .env("HOME", server.folder())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("node starts");
    let ended = tokio::time::timeout(PATIENCE * 3, looks.wait()).await;
    let status = ended.expect("it ends").expect("a child");
    assert!(status.success(), "{status}");
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}
