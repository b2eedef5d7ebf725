//! Outages as a replica's log tells them.

/// How many decisions a stall of the machine may cost on a replica: three rounds of the load.
///
/// Two busy cores leave a server or a replica without one for longer than the store's time now and then;
/// then a few requests are decided by failure mode, as they must be. A fault of ours costs hundreds.
pub(crate) const STALL: u64 = 24;

/// One outage.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) shard: String,
    /// By mode: local, allow, deny. `None` while it goes on.
    pub(crate) decisions: Option<[u64; 3]>,
}

impl Told {
    /// Whether it was more than a stall of the machine.
    pub(crate) fn counts(&self) -> bool {
        self.decisions
            .is_none_or(|decisions| decisions.iter().sum::<u64>() > STALL)
    }
}

/// The outages, in the order in which they began. Each must begin once and end once.
pub(crate) fn told(log: &str) -> Vec<Told> {
    let mut outages: Vec<Told> = Vec::new();
    for line in log.lines() {
        let field = |name: &str| {
            let (_, rest) = line.split_once(&format!(" {name}="))?;
            rest.split(' ').next()
        };
        let begins = line.contains("deciding by failure mode");
        if !begins && !line.contains("store answers again") {
            continue;
        }
        let shard = field("shard")
            .expect("the line says which shard")
            .trim_matches('"');
        let open = outages
            .iter_mut()
            .find(|outage| outage.shard == shard && outage.decisions.is_none());
        match (open, begins) {
            (None, true) => outages.push(Told {
                shard: shard.to_owned(),
                decisions: None,
            }),
            (Some(outage), false) => {
                assert!(field("lasted").is_some(), "{line}");
                let decided = |mode: &str| field(mode).unwrap().parse().unwrap();
                outage.decisions = Some(["decided_local", "decided_allow", "decided_deny"].map(decided));
            }
            _ => panic!("an outage begins, or ends, twice: {line}\n{log}"),
        }
    }
    outages
}
