//! What neighbours exchange is compared before anything runs.

use brigade::extend::CompiledSegment;
use brigade::graph::{Dim, Fact, Graph};
use brigade::ops::CompileOptions;
use brigade::{DType, DeviceId, ErrorKind};

use super::*;

/// A stage that hands its input on.
fn stage(name: &str, fact: &Fact) -> Graph {
    let mut graph = Graph::new(name);
    let x = graph.add_input("x", fact.clone()).unwrap();
    let y = graph.add_value("y", fact.clone()).unwrap();
    graph.add_node("same", "Identity", [Some(x)], [Some(y)]);
    graph.set_outputs([y]);
    graph
}

#[test]
fn scenario_38_neighbours_that_disagree_are_refused_by_name_before_anything_runs() {
    let (n, fixed) = (|| Dim::symbol("N"), Dim::fixed);
    let rows = || Fact::new(DType::F32, [n(), fixed(8)]);
    for kind in ["local", "grpc"] {
        let site = Site::new(kind, &["w1", "w2"]);
        let cluster = site.connect(ClusterOptions::new());
        let place = |device: &str, graph: Graph| -> Arc<dyn CompiledSegment> {
            let id: DeviceId = device.parse().unwrap();
            let device = cluster.registry().device(&id).unwrap();
            device.compile(graph, &CompileOptions::default()).unwrap()
        };
        let maker = place("w1/cpu:0", stage("maker", &rows()));
        for (reads, said) in [
            (Fact::new(DType::F16, [n(), fixed(8)]), "f16[N,8]"),
            (Fact::new(DType::F32, [fixed(8)]), "f32[8]"),
            (Fact::new(DType::F32, [n(), fixed(9)]), "f32[N,9]"),
        ] {
            let reader = place("w2/cpu:0", stage("reader", &reads));
            let error = maker.connect(0, reader.as_ref(), 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
            let words = error.to_string();
            for side in ["`maker` on w1/cpu:0 makes f32[N,8]", "`reader` on w2/cpu:0 reads"] {
                assert!(words.contains(side), "{kind}: {words}");
            }
            assert!(words.contains(said), "{kind}: {words}");
        }
        // What one side leaves open the other may fix.
        for reads in [rows(), Fact::new(DType::F32, [fixed(4), n()]), Fact::unknown()] {
            let reader = place("w2/cpu:0", stage("reader", &reads));
            maker.connect(0, reader.as_ref(), 0).unwrap();
        }
        // There is no such place at all.
        let reader = place("w2/cpu:0", stage("reader", &rows()));
        for (output, input) in [(1, 0), (0, 1)] {
            let error = maker.connect(output, reader.as_ref(), input).unwrap_err();
            assert!(error.to_string().contains("has no output"), "{error}");
        }
        let firings: u64 = ["w1", "w2"].iter().map(|w| site.worker(w).stats().firings).sum();
        assert_eq!(firings, 0);
    }
}
