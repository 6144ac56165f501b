//! Plan files: what is read, refused, resolved and written.

use super::*;
use crate::ErrorKind;
use crate::graph::Fact;
use crate::partition::Segmentation;

fn chain(names: &[(&str, &str)]) -> Graph {
    let mut g = Graph::new("chain");
    let mut last = g.add_input("x", Fact::unknown()).unwrap();
    for (name, op) in names {
        let next = g.add_value(format!("{name}.out"), Fact::unknown()).unwrap();
        g.add_node(*name, *op, [Some(last)], [Some(next)]);
        last = next;
    }
    g.set_outputs([last]);
    g
}

fn model() -> Graph {
    chain(&[("/enc/conv", "Conv"), ("/enc/relu", "Relu"), ("/dec/conv", "Conv"), ("fc", "Gemm")])
}

fn devices(graph: &Graph, map: &DeviceMap) -> Vec<String> {
    graph.node_ids().map(|(id, _)| map.placement(id).unwrap().device.to_string()).collect()
}

#[test]
fn the_first_rule_that_matches_wins() {
    let g = model();
    let plan = Plan::parse(
        r#"{"schema":1,"rules":[
                {"match":"name:/dec/conv","device":"cpu:3"},
                {"match":"op:C*","device":"cpu:1"},
                {"match":"name:/enc/*","device":"cpu:2"}],
              "default_device":"cpu"}"#,
    )
    .unwrap();
    let map = plan.resolve(&g, None).unwrap();
    assert_eq!(devices(&g, &map), ["cpu:1", "cpu:2", "cpu:3", "cpu:0"]);
    assert!(map.notices().is_empty());
}

#[test]
fn what_no_rule_places_is_named() {
    let plan =
        Plan::parse(r#"{"schema":1,"rules":[{"match":"name:/enc/*","device":"cpu"}]}"#).unwrap();
    let error = plan.resolve(&model(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Plan);
    assert!(error.message().contains("`/dec/conv`, `fc`"), "{error}");
    assert!(error.to_string().contains("default_device"), "{error}");
}

#[test]
fn useless_entries_are_noticed() {
    let hash = "ab".repeat(32);
    let plan = Plan::parse(&format!(
        r#"{{"schema":1,"model_sha256":"{hash}","rules":[
                {{"match":"op:Conv","device":"cpu:1"}},
                {{"match":"name:/dec/*","device":"cpu:2"}},
                {{"match":"op:Cnov","device":"cpu:3"}}],
              "default_device":"cpu:0","threads":{{"cpu:9":2,"cpu:1":1}},
              "precision":{{"cpu:8":"f16","cpu:1":"bf16"}}}}"#
    ))
    .unwrap();
    let map = plan.resolve(&model(), None).unwrap();
    let said: Vec<String> = map.notices().iter().map(Notice::to_string).collect();
    assert_eq!(said.len(), 5, "{said:?}");
    assert!(said[0].contains("rule 1") && said[0].contains("earlier rules"), "{said:?}");
    assert!(said[1].contains("`op:Cnov`") && said[1].contains("no node"), "{said:?}");
    assert!(said[3].contains("precision to `cpu:8`"), "{said:?}");
    assert!(said[2].contains("cpu:9") && said[4].contains("model_sha256"), "{said:?}");

    assert_eq!(plan.resolve(&model(), Some(&hash.to_uppercase())).unwrap().notices().len(), 4);
    let error = plan.resolve(&model(), Some(&"cd".repeat(32))).unwrap_err();
    assert!(error.kind() == ErrorKind::Plan && error.message().contains(&hash), "{error}");
}

/// A plan over `a` and `b` with what is said of a link.
fn link(from: &str, to: &str, latency: &str, rate: &str) -> String {
    format!(
        r#"{{"schema":1,"rules":[{{"match":"op:*","device":"a/cpu"}}],"default_device":"b/cpu",
              "links":[{{"from":"{from}","to":"{to}","latency_us":{latency},"bytes_per_s":{rate}}}]}}"#
    )
}

fn stage_id(device: &str, id: &str) -> String {
    format!(r#"{{"schema":1,"rules":[{{"match":"op:*","device":"{device}","stage_id":"{id}"}}]}}"#)
}

#[test]
fn links_and_datapaths_that_can_be_are_taken() {
    for json in
        [link("b", "a", "0", "1"), link("a", "head", "1", "9"), stage_id("a/datapath", "fft")]
    {
        Plan::parse(&json).unwrap();
    }
}

#[test]
fn faults_of_the_file_are_named() {
    let other = r#"{"from":"b","to":"a","latency_us":2,"bytes_per_s":9}"#;
    let twice = link("a", "b", "1", "9").replace("]}", &format!(",{other}]}}"));
    for (json, word) in [
        ("", "EOF"),
        ("[]", "object"),
        ("[1]", "object"),
        ("7", "object"),
        ("{}", "schema"),
        (r#"{"schema":2,"new_field":1}"#, "schema 2"),
        (r#"{"schema":1,"rule":[]}"#, "unknown field `rule`"),
        (r#"{"schema":1,"rules":[{"match":"Conv","device":"cpu"}]}"#, "`op:` or `name:`"),
        (r#"{"schema":1,"rules":[{"match":"op:Conv"}]}"#, "missing field `device`"),
        (r#"{"schema":1,"rules":[{"match":"op:a\\","device":"cpu"}]}"#, "lone"),
        (r#"{"schema":1,"rules":[{"match":"op:a","device":"CPU"}]}"#, "[a-z][a-z0-9_-]*(:N)?"),
        (r#"{"schema":1,"threads":{"cpu":1,"cpu:0":2}}"#, "`cpu:0` is given twice"),
        (r#"{"schema":1,"precision":{"cpu":"f32","cpu:0":"bf16"}}"#, "`cpu:0` is given twice"),
        (
            r#"{"schema":1,"precision":{"cpu":"half"}}"#,
            "unknown variant `half`, expected one of `f32`",
        ),
        (r#"{"schema":1,"threads":{"cpu":0}}"#, "0 kernel threads"),
        (r#"{"schema":1,"threads":{"cpu":257}}"#, "`cpu:0`: 257 kernel threads"),
        (r#"{"schema":1,"replicas":{"1":257}}"#, "at most 256"),
        (r#"{"schema":1,"in_flight":65537}"#, "at most 65536"),
        (r#"{"schema":1,"replicas":{"1":0}}"#, "0 replicas"),
        (r#"{"schema":1,"in_flight":0}"#, "at least 1"),
        (r#"{"schema":1,"in_flight":"lots"}"#, "auto"),
        (r#"{"schema":1,"in_flight":4294967296}"#, "at least 1"),
        (r#"{"schema":1,"micro_batch":0}"#, "micro_batch"),
        (r#"{"schema":1,"micro_batch":-1}"#, "-1"),
        (r#"{"schema":1,"model_sha256":"abc"}"#, "64 hexadecimal"),
        (r#"{"schema":1,"schema":1}"#, "duplicate field"),
        (&link("w1", "w2", "1", "9"), "nothing is placed on `w2` or `w1`"),
        (&link("a", "a", "1", "9"), "two ends"),
        (&link("a", "", "1", "9"), "`` is not the name of a worker"),
        (&link("a", "A!", "1", "9"), "`A!` is not the name of a worker"),
        (&link("a", "b", "-1", "9"), "-1"),
        (&link("a", "b", "NaN", "9"), "expected"),
        (&link("a", "b", "1.5", "9"), "1.5"),
        (&link("a", "b", "1", "0"), "bytes_per_s is 0"),
        (&link("a", "b", "1", "-9"), "-9"),
        (&twice, "`b` to `a`: the link is given twice"),
        (&stage_id("a/datapath", ""), "rule 0 of the plan: the stage_id is empty"),
        (&stage_id("cpu", "fft"), "`fft`, which `cpu:0` is not"),
    ] {
        let error = Plan::parse(json).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Plan, "{json}");
        assert!(error.to_string().contains(word), "{json}: {error}");
    }
}

fn full() -> Plan {
    Plan {
        model_sha256: Some("0f".repeat(32)),
        rules: vec![
            Rule {
                matcher: Matcher::Op("Conv".into()),
                device: DeviceId::cpu(1).at("w1").unwrap(),
                stage: None,
                stage_id: Some("fft".into()),
            },
            Rule {
                matcher: Matcher::exactly("a*b?c\\d"),
                device: DeviceId::new("wgpu", 0).unwrap(),
                stage: Some(2),
                stage_id: None,
            },
        ],
        default_device: Some(DeviceId::cpu(0)),
        micro_batch: Some(8),
        in_flight: Some(InFlight::Auto),
        threads: BTreeMap::from([(DeviceId::cpu(0), 2)]),
        precision: BTreeMap::from([
            (DeviceId::cpu(0), Precision::Bf16),
            (DeviceId::new("wgpu", 0).unwrap(), Precision::F32),
        ]),
        replicas: BTreeMap::from([(1, 3)]),
        links: vec![MeasuredLink {
            from: "w1".into(),
            to: "coordinator".into(),
            latency_us: 120,
            bytes_per_s: 1 << 27,
        }],
    }
}

#[test]
fn json_and_bincode_give_the_same_plan_back() {
    let counted = Plan { in_flight: Some(InFlight::Count(5)), ..full() };
    for plan in [full(), counted, Plan::default()] {
        let json = plan.to_json().unwrap();
        assert_eq!(Plan::parse(&json).unwrap(), plan, "{json}");
        let bytes = bincode::serialize(&plan).unwrap();
        assert_eq!(bincode::deserialize::<Plan>(&bytes).unwrap(), plan);
    }
    let json = full().to_json().unwrap();
    for part in
        [r#""schema": 1"#, r#""in_flight": "auto""#, r#""match": "op:Conv""#, r#""cpu:0": "bf16""#]
    {
        assert!(json.contains(part), "{json}");
    }
    // bincode gets no schema that this version does not know either.
    let mut bytes = bincode::serialize(&full()).unwrap();
    bytes[0] = 9;
    assert!(bincode::deserialize::<Plan>(&bytes).unwrap_err().to_string().contains("schema 9"));
}

#[test]
fn maps_round_trip_through_plans() {
    let g =
        chain(&[("a*", "Relu"), ("a?", "Relu"), ("ab", "Relu"), (r"a\*", "Relu"), ("", "Relu")]);
    let two = [DeviceId::cpu(0), DeviceId::cpu(1)];
    for map in [
        DeviceMap::single(DeviceId::cpu(2)),
        DeviceMap::from_placements(&g, |id, _| DeviceId::cpu(id.index() as u32 % 2).into()),
        DeviceMap::balanced(&g, &two, 3, &|_| 1.0, &|_| 1.0).unwrap(),
    ] {
        let plan = Plan::from_map(&g, &map).unwrap();
        let again = Plan::parse(&plan.to_json().unwrap()).unwrap().resolve(&g, None).unwrap();
        assert_eq!(again, map);
        let (a, b) = (Segmentation::new(&g, &map), Segmentation::new(&g, &again));
        assert_eq!(a.unwrap().segments().len(), b.unwrap().segments().len());
    }
    let other = model();
    let map = DeviceMap::from_fn(&g, |_| DeviceId::cpu(0));
    assert_eq!(Plan::from_map(&other, &map).unwrap_err().kind(), ErrorKind::Plan);
}

#[test]
fn plans_are_read_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let g = model();
    let error = DeviceMap::from_file(&g, &path, None).unwrap_err();
    assert!(error.kind() == ErrorKind::Io && error.message().contains("plan.json"), "{error}");
    std::fs::write(&path, r#"{"schema":1,"default_device":"cpu:4"}"#).unwrap();
    let map = DeviceMap::from_file(&g, &path, None).unwrap();
    assert_eq!(map, DeviceMap::single(DeviceId::cpu(4)));
    std::fs::write(&path, b"\xff\xfe").unwrap();
    assert!(DeviceMap::from_file(&g, &path, None).is_err());
    std::fs::write(&path, "{").unwrap();
    let error = DeviceMap::from_file(&g, &path, None).unwrap_err();
    assert!(error.message().contains("plan.json"), "{error}");
}
