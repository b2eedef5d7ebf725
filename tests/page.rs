//! The status page in a real Chromium, of the real service.
//!
//! `BLESS_SCREENSHOTS=1` writes the pictures of the documents.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::TempDir;

#[path = "support/browser.rs"]
mod browser;
#[path = "support/cota.rs"]
#[allow(dead_code, reason = "every test crate uses its part")]
mod cota_process;
#[path = "support/redis.rs"]
#[allow(dead_code, reason = "every test crate uses its part")]
mod redis_server;

use browser::Browser;
use cota_process::{Cota, Got, command, request};
use redis_server::Server;

const TOKEN: &str = "swordfish";

const WIDE: (u32, u32) = (1_200, 900);
const PHONE: (u32, u32) = (390, 844);

const API: &str = r#"
domain: api
defaults: {algorithm: token_bucket}
costs: {entry: route, default: 1, values: {search: 5, export: 10}}
safety_ceiling: {unit: second, requests_per_unit: 1500}
descriptors:
  - key: tenant
    rate_limits:
      - name: tenant
        plan_entry: plan
        plans:
          free: {unit: hour, requests_per_unit: 20}
          pro: {unit: hour, requests_per_unit: 600, burst: 90}
          enterprise: {unit: hour, requests_per_unit: 6000, burst: 900}
        default_plan: free
        attribute_to: credential
    descriptors:
      - key: route
        value: export
        rate_limit: {name: export, unit: hour, requests_per_unit: 3, algorithm: sliding_window, counts: requests, failure_mode: deny}
      - key: credential
        rate_limit: {name: credential, unit: hour, requests_per_unit: 300, burst: 45, shadow_mode: true}
"#;

const DOOR: &str = r#"
domain: door
descriptors:
  - key: remote_address
    address: {}
    rate_limit: {name: anonymous, unit: day, requests_per_unit: 10, algorithm: token_bucket, failure_mode: allow}
overrides:
  - match: {remote_address: 192.0.2.77}
    limit: anonymous
    unlimited: true
    author: ana
    reason: the probe of the status page
"#;

/// A service with a folder of its own for its files.
struct Place {
    cota: Cota,
    folder: TempDir,
}

impl Place {
    /// With `guarded`, there is an admin token.
    fn open(guarded: bool, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config");
        fs::create_dir(&config).unwrap();
        fs::write(config.join("api.yaml"), API).unwrap();
        fs::write(config.join("door.yaml"), DOOR).unwrap();
        let mut command = command(&["serve", "--drain", "0s"]);
        command.arg("--config").arg(&config).args(arguments);
        if guarded {
            let token = folder.path().join("token");
            fs::write(&token, TOKEN).unwrap();
            command.arg("--admin-token-file").arg(token);
        }
        let cota = Cota::start(&mut command);
        Self { cota, folder }
    }

    fn config(&self, name: &str) -> PathBuf {
        self.folder.path().join("config").join(name)
    }

    fn url(&self) -> String {
        format!("http://{}/", self.cota.http)
    }

    /// Opens the page in a browser of that size.
    fn page(&self, (width, height): (u32, u32)) -> Browser {
        let mut browser = Browser::open(width, height);
        browser.go(&self.url());
        // Whoever loads the page anew loses this.
        browser.eval("window.loaded = true");
        browser
    }

    /// A tenant asks that often; how often it was refused.
    fn ask(&self, tenant: &str, credential: &str, times: u32) -> u32 {
        let entries: &[(&str, &str)] = &[("tenant", tenant), ("credential", credential)];
        let message = request("api", &[&[("tenant", tenant)], entries]);
        let over = |_: &u32| self.cota.send(message.clone()).unwrap().overall_code == 2;
        u32::try_from((0..times).filter(over).count()).unwrap()
    }
}

/// Types the token where names are hidden.
fn sign_in(browser: &mut Browser, token: &str) {
    browser.fill("#token", token);
    browser.click("#token-form button");
}

fn never_loaded_anew(browser: &mut Browser) {
    assert_eq!(browser.eval("window.loaded"), json!(true));
}

/// Nothing of the page is wider than the window.
fn fits(browser: &mut Browser) {
    let wide = browser.eval(
        "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 0.5
            && !e.closest('thead, [hidden]')).map(e => e.outerHTML.slice(0, 80))",
    );
    assert_eq!(wide, json!([]));
    let overhang = browser.eval("document.documentElement.scrollWidth - innerWidth");
    assert!(overhang.as_i64().unwrap() <= 0, "{overhang} px too wide");
}

#[test]
fn the_page_shows_what_is_enforced() {
    let place = Place::open(false, &[]);
    let mut browser = place.page(WIDE);
    assert_eq!(browser.text("#mode"), "enforcing");
    for (domain, texts) in [
        (
            "#domain-0",
            &[
                "api",
                "3 limits",
                "free",
                "20 per hour",
                "600 per hour, burst 90",
                "by plan, else free",
            ][..],
        ),
        (
            "#domain-0",
            &[
                "search = 5",
                "1,500 per second",
                "sliding window",
                "all are refused",
                "shadow",
            ][..],
        ),
        (
            "#domain-1",
            &[
                "door",
                "1 limit",
                "10 per day, burst 10",
                "remote_address",
                "all pass",
            ][..],
        ),
    ] {
        let shown = browser.text(domain);
        for text in texts {
            assert!(shown.contains(text), "{text}: {shown}");
        }
    }
    assert!(browser.text("#tiles").contains("in 2 domains"));
    assert!(browser.text("#store").contains("memory of this replica"));
    assert!(browser.text("#refused").contains("Nobody is refused."));
    // For those who cannot see: landmarks, one head, tables with names and heads.
    let counts = browser.eval(
        "['main', 'body > header', 'nav[aria-label]', 'h1', 'table:not([aria-label])', 'th:not([scope])',
          'section:not([aria-labelledby])', 'html[lang]'].map(s => document.querySelectorAll(s).length)",
    );
    assert_eq!(counts, json!([1, 1, 1, 1, 0, 0, 0, 1]));
    let unnamed = browser.eval("[...document.querySelectorAll('button, input:not([type=radio]), a')].filter(e => !e.innerText && !e.labels?.length && !e.ariaLabel).length");
    assert_eq!(unnamed, json!(0));
    browser.kept_to(&place.url());
}

#[test]
fn without_scripts_it_is_a_page_to_reload() {
    let place = Place::open(true, &["--shadow"]);
    let mut browser = Browser::open(WIDE.0, WIDE.1);
    browser.allow_scripts(false);
    let navigated = browser.call("Page.navigate", json!({"url": place.url()}));
    assert!(navigated["errorText"].is_null(), "{navigated}");
    // Scripts of the page do not run; those of the protocol still do.
    browser.until("document.querySelector('#enforced details')");
    assert_eq!(browser.text("#mode"), "shadow");
    assert!(browser.text("#alerts").contains("nothing is refused"));
    assert!(browser.text("#enforced").contains("20 per hour"));
    assert!(browser.text("#overrides").contains("needs JavaScript"));
    let buttons = "[...document.querySelectorAll('button')].filter(e => e.offsetWidth > 0).length";
    assert_eq!(browser.eval(buttons), json!(0));
}

#[test]
fn whoever_is_refused_appears_without_a_reload() {
    let place = Place::open(false, &[]);
    let mut browser = place.page(WIDE);
    browser.until_text("#refused", "Nobody is refused.");
    assert_eq!(place.ask("globex", "web", 18), 0);
    assert_eq!(place.ask("acme", "batch", 45), 25);
    browser.until_text("#refused", "tenant=acme");
    browser.until_text("#refused", "batch");
    browser.until_text("#near", "tenant=globex");
    let refused = browser.text("#refused");
    assert!(refused.contains("25") && refused.contains("100%"), "{refused}");
    assert!(refused.contains("One caller makes most of it"), "{refused}");
    assert!(browser.text("#near").contains("90%"));
    assert!(browser.text("#tiles").contains("25"));
    never_loaded_anew(&mut browser);
    browser.kept_to(&place.url());
}

#[test]
fn a_reader_who_pauses_the_page_or_folds_a_domain_is_not_disturbed() {
    let place = Place::open(false, &[]);
    let mut browser = place.page(WIDE);
    browser.click("#domain-1 summary");
    browser.click("#pause");
    place.ask("acme", "batch", 30);
    let paused = browser.eval(
        "new Promise(done => setTimeout(() => done(document.querySelector('#refused').innerText), 3000))",
    );
    assert!(
        paused.as_str().unwrap().contains("Nobody is refused."),
        "{paused}"
    );
    browser.click("#pause");
    browser.until_text("#refused", "tenant=acme");
    // The section changes, since another file is read.
    let text = API.replace("requests_per_unit: 20}", "requests_per_unit: 21}");
    fs::write(place.config("api.yaml"), text).unwrap();
    browser.until_text("#enforced", "21 per hour");
    assert_eq!(
        browser.eval("document.querySelector('#domain-0').open"),
        json!(true)
    );
    assert_eq!(
        browser.eval("document.querySelector('#domain-1').open"),
        json!(false)
    );
    never_loaded_anew(&mut browser);
}

#[test]
fn hostile_bytes_stay_text() {
    let place = Place::open(true, &[]);
    let evil = "\"'><script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>";
    let odd = "'\"<b>é,=%41";
    for tenant in [
        evil,
        "\u{202e}emca",
        "\u{1b}[31m\r\n\0",
        "javascript:window.pwned=1//",
        odd,
    ] {
        assert_eq!(place.ask(tenant, evil, 25), 5, "{tenant:?}");
    }
    let mut browser = place.page(WIDE);
    sign_in(&mut browser, TOKEN);
    // What an operator writes is as bad as what a caller sends.
    let spec = json!({
        "domain": "api", "match": {"tenant": evil}, "limit": "tenant", "unlimited": true,
        "expires_at": "2030-01-01T00:00:00Z", "author": format!("\u{202e}{evil}"), "reason": evil,
    });
    let status = browser.eval(&format!(
        "fetch('overrides', {{method: 'POST', headers: {{Authorization: 'Bearer {TOKEN}'}}, body: {}}}).then(a => a.status)",
        json!(spec.to_string())
    ));
    assert_eq!(status, json!(201));
    fs::write(
        place.config("evil.yaml"),
        "domain: \"<script>window.pwned = 1</script>\"\nevil: 1\n",
    )
    .unwrap();
    browser.until_text("#refused", "%22%27%3E%3Cscript%3E");
    browser.until_text("#refused", "tenant=%E2%80%AEemca");
    browser.until_text("#refused", "tenant=%1B%5B31m%0D%0A%00");
    browser.until_text("#overrides", evil);
    browser.until_text("#overrides", &format!("by \\u{{202e}}{evil}"));
    browser.until_text("#alerts", "evil: 1");
    assert_eq!(browser.eval("window.pwned ?? 0"), json!(0));
    assert_eq!(browser.eval("document.scripts.length"), json!(1));
    assert_eq!(browser.eval("document.images.length"), json!(1));
    assert_eq!(
        browser.eval("/[\\u202e\\u001b\\0]/.test(document.body.innerText)"),
        json!(false)
    );
    // The form reads the name back as it was.
    browser.click("[data-caller^='tenant=%27%22%3Cb']");
    let typed = browser.eval("document.querySelector('#override-match').value");
    assert_eq!(typed, json!(format!("tenant={odd}")));
    browser.kept_to(&place.url());
}

/// What slipped through the escaping would still not run, nor reach anybody.
#[test]
fn the_browser_is_told_to_run_and_reach_nothing_else() {
    let place = Place::open(false, &[]);
    let mut browser = place.page(WIDE);
    let markup =
        "(() => { try { document.body.innerHTML = '<b>'; return 'set' } catch { return 'refused' } })()";
    assert_eq!(browser.eval(markup), json!("refused"));
    browser.eval("document.createElement('img').src = 'http://127.0.0.1:1/x.png'");
    browser.eval("fetch('http://127.0.0.1:1/').catch(() => 0)");
    for directive in [
        "require-trusted-types-for",
        "img-src http://127.0.0.1:1",
        "connect-src http://127.0.0.1:1",
    ] {
        browser.until(&format!(
            "window.violations.some(v => v.startsWith({}))",
            json!(directive)
        ));
    }
}

#[test]
fn names_are_for_those_who_know_the_token() {
    let place = Place::open(true, &[]);
    place.ask("acme", "batch", 30);
    place.ask("globex", "web", 17);
    let mut browser = place.page(WIDE);
    browser.until_text("#refused", "hidden");
    let page = "document.documentElement.outerHTML";
    for name in [
        "acme",
        "globex",
        "batch",
        "192.0.2.77",
        "the probe of the status page",
    ] {
        let found = browser.eval(&format!("{page}.includes({})", json!(name)));
        assert_eq!(found, json!(false), "{name}");
    }
    sign_in(&mut browser, "sword");
    browser.until_text("#token-answer", "with the token of --admin-token-file");
    sign_in(&mut browser, TOKEN);
    browser.until_text("#refused", "tenant=acme");
    browser.until_text("#near", "tenant=globex");
    browser.until_text("#overrides", "192.0.2.77");
    never_loaded_anew(&mut browser);
    // It is nowhere but in the page's memory.
    let kept = browser.eval(
        "[location.href, document.cookie, JSON.stringify(localStorage), JSON.stringify(sessionStorage), document.documentElement.outerHTML].join()",
    );
    assert!(!kept.as_str().unwrap().contains(TOKEN), "{kept}");
    // Another token: names go.
    fs::write(place.folder.path().join("token"), "herring").unwrap();
    browser.until_text("#notice", "no longer accepted");
    browser.until_text("#refused", "hidden");
    browser.kept_to(&place.url());
}

#[test]
fn an_override_is_set_and_revoked_from_the_page() {
    let place = Place::open(true, &[]);
    assert_eq!(place.ask("acme", "batch", 21), 1);
    let mut browser = place.page(WIDE);
    sign_in(&mut browser, TOKEN);
    browser.until_text("#refused", "tenant=acme");
    browser.click("#refused [data-override]");
    let filled = browser
        .eval("['domain', 'limit', 'match'].map(id => document.querySelector('#override-' + id).value)");
    assert_eq!(filled, json!(["api", "tenant", "tenant=acme"]));
    browser.fill("#override-author", "ana");
    browser.fill("#override-reason", "ticket 4411");
    browser.fill("#override-token", "wrong");
    browser.click("#override-send");
    browser.until_text("#override-answer", "with the token of --admin-token-file");
    assert_eq!(place.ask("acme", "batch", 1), 1);
    browser.fill("#override-token", TOKEN);
    // The service words what is wrong.
    browser.fill("#override-limit", "tenants");
    browser.click("#override-send");
    browser.until_text("#override-answer", "its limits are credential, export, tenant");
    browser.fill("#override-limit", "tenant");
    browser.click("#override-send");
    browser.until("!document.querySelector('#override').open");
    browser.until_text("#notice", "is set");
    assert_eq!(place.ask("acme", "batch", 1), 0);
    browser.until_text("#overrides", "ticket 4411");
    let shown = browser.text("#overrides");
    for text in ["tenant = acme", "× 10", "59 min", "by ana"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    browser.click("#overrides [data-revoke]");
    browser.click("#revoke-send");
    browser.until_text("#notice", "is revoked");
    browser.until("!document.querySelector('#overrides [data-revoke]')");
    assert_eq!(place.ask("acme", "batch", 1), 1);
    never_loaded_anew(&mut browser);
    browser.kept_to(&place.url());
}

#[test]
fn an_override_with_numbers_says_when_it_ends() {
    let place = Place::open(true, &[]);
    let mut browser = place.page(PHONE);
    browser.click("#new-override");
    fits(&mut browser);
    for (field, text) in [
        ("domain", "api"),
        ("limit", "export"),
        ("match", "tenant=acme\nroute=export"),
        ("units", "40"),
        ("author", "ana"),
        ("reason", "month's end"),
        ("token", TOKEN),
    ] {
        browser.fill(&format!("#override-{field}"), text);
    }
    browser.eval("document.querySelector('#override-lasts').value = '259200'");
    browser.click("#override-send");
    browser.until_text("#overrides", "month's end");
    let shown = browser.text("#overrides");
    assert!(
        shown.contains("40 per unit") && shown.contains("2 d 23 h"),
        "{shown}"
    );
    browser.kept_to(&place.url());
}

#[test]
fn without_a_token_file_changes_are_off() {
    let place = Place::open(false, &[]);
    place.ask("acme", "batch", 30);
    let mut browser = place.page(WIDE);
    browser.until_text("#refused", "tenant=acme");
    assert!(browser.text("#overrides").contains("Changes are off"));
    assert!(browser.text("#overrides").contains("192.0.2.77"));
    let forms =
        browser.eval("document.querySelectorAll('form, dialog, [data-override], [data-revoke]').length");
    assert_eq!(forms, json!(0));
}

#[test]
fn faults_of_the_files_show_and_go_without_a_reload() {
    let place = Place::open(false, &[]);
    let mut browser = place.page(WIDE);
    fs::write(place.config("door.yaml"), DOOR.replace("unit: day", "unit: eon")).unwrap();
    browser.until_text("#alerts", "in the policy files. Domains with errors stay");
    browser.until_text("#alerts", "door.yaml:6");
    assert!(browser.text("#domain-1").contains("10 per day"));
    fs::write(place.config("door.yaml"), DOOR).unwrap();
    browser.until("!document.querySelector('#alerts .bad')");
    never_loaded_anew(&mut browser);
}

#[test]
fn a_service_that_is_gone_is_told_of() {
    let mut place = Place::open(false, &[]);
    let mut browser = place.page(WIDE);
    place.cota.signal("KILL");
    place.cota.await_end();
    browser.until_text("#trouble", "The service does not answer");
    browser.until("document.body.matches('.stale')");
    assert!(browser.text("#trouble").contains("UTC"));
    assert!(browser.text("#enforced").contains("20 per hour"));
    never_loaded_anew(&mut browser);
}

#[test]
fn an_outage_of_the_store_shows_with_its_time_and_ends() {
    let mut redis = Server::start(&[]);
    let place = Place::open(false, &["--store", &redis.url(), "--store-timeout", "2s"]);
    let mut browser = place.page(WIDE);
    browser.until_text("#store", "1 live replica");
    browser.until_text("#store", "yes");
    redis.kill();
    browser.until_text("#alerts", "Degraded");
    browser.until_text("#tiles", "degraded");
    browser.until_text("#store tbody", "no");
    assert!(browser.text("#store").contains(&redis.port.to_string()));
    redis.restart();
    browser.until("!document.querySelector('#alerts .bad')");
    browser.until_text("#store", "yes");
    never_loaded_anew(&mut browser);
    browser.kept_to(&place.url());
}

/// A night on which something is going on, for eyes: everything fits on a desk and on a phone.
#[test]
fn a_full_page_fits_on_a_desk_and_on_a_phone() {
    let redis = Server::start(&[]);
    let store = ["--store", &redis.url(), "--store-timeout", "2s"];
    let place = Place::open(true, &store);
    let neighbour = Place::open(true, &store);
    for (tenant, credential, times) in [
        ("acme", "batch-import", 310),
        ("globex", "web", 19),
        ("initech", "mobile", 36),
        ("umbrella", "web", 17),
        ("hooli", "ci", 27),
        (
            "a-tenant-with-a-name-that-goes-on-and-on-and-on-and-does-not-end",
            "web",
            24,
        ),
        ("Größe & Söhne", "web", 22),
    ] {
        place.ask(tenant, credential, times);
    }
    for host in 1..=60 {
        for _ in 0..12 {
            let address = format!("198.51.100.{host}");
            assert_ne!(
                place.cota.ask("door", "remote_address", &address).unwrap(),
                Got::Free
            );
        }
    }
    let mut browser = place.page(WIDE);
    sign_in(&mut browser, TOKEN);
    browser.until_text("#refused", "tenant=acme");
    for (tenant, change, seconds, reason) in [
        (
            "initech",
            json!({"multiply": 10}),
            9_300,
            "migration, ticket 4411",
        ),
        (
            "stark",
            json!({"requests_per_unit": 600, "burst": 90}),
            190_000,
            "trial of plan pro, ticket 4502",
        ),
    ] {
        let mut spec = change;
        spec["domain"] = json!("api");
        spec["limit"] = json!("tenant");
        spec["match"] = json!({ "tenant": tenant });
        spec["author"] = json!("ana");
        spec["reason"] = json!(reason);
        let set = format!(
            "fetch('overrides', {{method: 'POST', headers: {{Authorization: 'Bearer {TOKEN}'}}, body: JSON.stringify(
               {{...{spec}, expires_at: new Date(Date.now() + {seconds}000).toISOString()}})}}).then(a => a.status)"
        );
        assert_eq!(browser.eval(&set), json!(201));
    }
    browser.until_text("#overrides", "ticket 4502");
    browser.until_text("#store", "2 live replicas");
    browser.until_text("#refused", "Spread over many callers");
    fits(&mut browser);
    for (name, (width, height), scheme) in [
        ("status-page", (1_200, 1_400), "light"),
        ("status-page-phone", (PHONE.0, 1_300), "dark"),
        ("status-page-dark", WIDE, "dark"),
        ("status-page-phone-light", PHONE, "light"),
    ] {
        browser.resize(width, height);
        browser.prefer(scheme);
        browser.eval("scrollTo(0, 0)");
        fits(&mut browser);
        picture(name, &mut browser);
    }
    browser.click("#refused [data-override]");
    fits(&mut browser);
    picture("status-page-form", &mut browser);
    browser.kept_to(&place.url());
    drop(neighbour);
}

/// The two pictures of the documents go there, the others beside what is built.
fn picture(name: &str, browser: &mut Browser) {
    if std::env::var_os("BLESS_SCREENSHOTS").is_none() {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let documented = ["status-page", "status-page-phone"].contains(&name);
    let folder = if documented {
        root.join("docs")
    } else {
        PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
    };
    fs::write(folder.join(format!("{name}.png")), browser.picture()).unwrap();
}
