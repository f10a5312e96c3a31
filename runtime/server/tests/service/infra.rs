//! Do the settings, the unit and the container of `infra/service` start a server?

use std::process::Command;

use crate::server::Server;

/// The words after which a command line's options come.
fn options(line: &str) -> Vec<String> {
    let words = line.replace(['[', ']', '"', ','], " ");
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let serve = words
        .iter()
        .position(|word| word == "serve")
        .expect("it serves");
    assert!(words[serve - 1].ends_with("/usr/bin/warpline"), "{line}");
    words[serve + 1..].to_vec()
}

#[tokio::test]
async fn the_settings_of_infra_start_a_server_as_the_unit_and_the_container_do() {
    let mut server = Server::prepare(&[]);
    let etc = server.folder().join("etc");
    std::fs::create_dir(&etc).unwrap();
    let made =
        rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
    std::fs::write(etc.join("tls.crt"), made.cert.pem()).unwrap();
    std::fs::write(etc.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_warpline"))
        .args(["tokens", "new", "--owner", "ada"])
        .output()
        .expect("warpline starts");
    let told = String::from_utf8(output.stderr).unwrap();
    let entry = told
        .lines()
        .find(|line| line.contains("sha256"))
        .expect("an entry");
    std::fs::write(etc.join("tokens.yaml"), format!("tokens:\n{entry}\n")).unwrap();
    let here = etc.display().to_string();
    let settings =
        include_str!("../../../../infra/service/server.yaml").replace("/etc/warpline", &here);
    std::fs::write(etc.join("server.yaml"), settings).unwrap();

    let unit = include_str!("../../../../infra/service/warpline.service");
    let unit = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="))
        .expect("a command");
    let container = include_str!("../../../../infra/service/Containerfile");
    let container = container
        .lines()
        .find_map(|line| line.strip_prefix("ENTRYPOINT "))
        .expect("a command");
    assert_eq!(options(unit), options(container));
    for option in options(unit) {
        server.add_argument(&option.replace("/etc/warpline", &here));
    }
    server.launch();
    server.speaks_tls();
    server.token = Some(String::from_utf8(output.stdout).unwrap().trim().to_owned());
    let certificate = etc.join("tls.crt").display().to_string();
    let output = server.run_client(&["list", "--ca-certificate", &certificate]);
    assert!(output.status.success(), "{output:?}");
    server.token = None;
    let output = server.run_client(&["list", "--ca-certificate", &certificate]);
    assert_eq!(output.status.code(), Some(6), "{output:?}");
}
