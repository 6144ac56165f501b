//! Three models read a page: detection finds the lines, classification turns them upright,
//! recognition reads them.

use brigade::graph::Graph;
use brigade::{Pipeline, Tensor, Value};

use super::models;

#[path = "../../examples/ocr/picture.rs"]
mod picture;
#[path = "../../examples/ocr/reader.rs"]
mod reader;

use picture::{Picture, lines, spell, variants};
use reader::{HEIGHT, Reader, Token};

/// What is written on the page.
const LINES: [&str; 4] = [
    "Actor mailboxes are bounded.",
    "Stage 2 waits for stage 1.",
    "Total 1,284.50 EUR",
    "Invoice 2024-06-07",
];

fn decode(steps: &Tensor, graph: &Graph) -> String {
    spell(steps, &graph.metadata["character"]).unwrap()
}

fn spawn(graph: &Graph, shape: &[usize]) -> Pipeline {
    Pipeline::builder(graph.clone())
        .stages(2, &["cpu:0", "cpu:1"])
        .unwrap()
        .expected_shape("x", shape)
        .spawn()
        .unwrap()
}

fn run(pipeline: &Pipeline, picture: &Picture) -> Tensor {
    let outputs: Vec<Value> = pipeline.run([("x", picture.tensor().unwrap())]).unwrap();
    outputs.into_iter().next().unwrap().into_tensor().unwrap()
}

/// The trio and the page, if the models are here.
fn trio() -> Option<([models::Model; 3], Picture)> {
    let [det, cls, rec] = ["ppocr-det", "ppocr-cls", "ppocr-rec"].map(models::one);
    let (det, cls, rec) = (det?, cls?, rec?);
    let case = det.cases.iter().find(|c| c.name == "rendered-480x640").unwrap();
    let page = Picture::of(&case.inputs[0].tensor).unwrap();
    Some(([det, cls, rec], page))
}

#[test]
fn the_ocr_trio_reads_its_text() {
    let Some(([det, cls, rec], page)) = trio() else { return };
    let detect = spawn(&det.graph(), &[1, 3, page.height, page.width]);
    let map = run(&detect, &page);
    let boxes = lines(&map).unwrap();

    let recogniser = rec.graph();
    let direction = spawn(&cls.graph(), &[1, 3, HEIGHT, 192]);
    let recognise = spawn(&recogniser, &[1, 3, HEIGHT, 320]);
    // Every second line is turned upside down, for the classifier to notice.
    let texts: Vec<String> = boxes
        .iter()
        .enumerate()
        .map(|(i, place)| {
            let mut line = page.crop(*place);
            if i % 2 == 1 {
                line = line.turned();
            }
            let verdict = run(&direction, &line.resize(HEIGHT, 192));
            let verdict = verdict.as_slice::<f32>().unwrap();
            assert_eq!(verdict[1] > verdict[0], i % 2 == 1, "line {i}: {verdict:?}");
            if verdict[1] > verdict[0] {
                line = line.turned();
            }
            let wide = (line.width * HEIGHT).div_ceil(line.height);
            decode(&run(&recognise, &line.resize(HEIGHT, wide)), &recogniser)
        })
        .collect();
    assert_eq!(texts, LINES);
}

/// The application of `examples/ocr`: fan-out into lines, batches, lists, several pages on their way.
#[test]
fn the_ocr_application_streams_what_it_reads_one_by_one() {
    let Some(([det, cls, rec], page)) = trio() else { return };
    let reader = Reader::new(det.graph(), cls.graph(), rec.graph()).unwrap();
    // The last page is empty: a page without lines is a text without lines.
    let mut pages = variants(&page, 8);
    pages.push(Picture { height: 64, width: 64, data: vec![1.0; 3 * 64 * 64] });
    let expected: Vec<Vec<String>> = pages.iter().map(|page| reader.read(page).unwrap()).collect();
    assert_eq!(expected[0], LINES);
    let turned: Vec<&str> = LINES[..2].iter().rev().copied().collect();
    assert_eq!(expected[1], turned);
    assert!(expected[8].is_empty());

    let pipeline = reader.pipeline(4).unwrap();
    let inputs = || pages.iter().map(|page| vec![Token::picture(page.turned().turned())]);
    for round in 0..3 {
        for (n, result) in pipeline.stream(inputs().collect::<Vec<_>>()).enumerate() {
            let text = result.unwrap().remove(0).into_text().unwrap();
            assert_eq!(text, expected[n].join("\n"), "page {n} in round {round}");
        }
    }
    let stats = pipeline.stats();
    assert_eq!((stats.completed, stats.failed), (27, 0));
    let firings = |name: &str| -> u64 {
        stats.actors.iter().filter(|a| a.actor == name).map(|a| a.items).sum()
    };
    assert!(firings("recognise") < firings("spell"), "lines are recognised in batches");
}

/// Pages come as files; what is no picture is that page's error, and the others are read.
#[test]
fn a_file_that_is_no_picture_is_the_error_of_its_page() {
    let Some(([det, cls, rec], page)) = trio() else { return };
    let reader = Reader::new(det.graph(), cls.graph(), rec.graph()).unwrap();
    let file = page.encode().unwrap();
    let decoded = Picture::decode(&file).unwrap();
    assert_eq!((decoded.height, decoded.width), (page.height, page.width));
    let apart = decoded.data.iter().zip(&page.data).map(|(one, other)| (one - other).abs());
    assert!(apart.fold(0.0, f32::max) <= 1.0 / 255.0, "an 8-bit picture is a rounding away");

    let files: [&[u8]; 4] = [&file, &file[..file.len() / 2], b"no picture", &file];
    let pipeline = reader.pipeline(4).unwrap();
    let inputs = files.map(|file| vec![Token::File(file.into())]);
    let results: Vec<_> = pipeline.stream(inputs).collect();
    for (n, result) in results.into_iter().enumerate() {
        match result {
            Ok(mut texts) => {
                assert!(n == 0 || n == 3, "page {n} was read");
                assert_eq!(texts.remove(0).into_text().unwrap(), LINES.join("\n"));
            }
            Err(error) => {
                assert!(n == 1 || n == 2, "page {n}: {error}");
                let said = error.to_string();
                assert!(said.contains("decode") && said.contains("no picture"), "{said}");
            }
        }
    }
}

/// What each case of the recogniser says that it reads.
#[test]
fn recognised_lines_are_their_text() {
    let Some(rec) = models::one("ppocr-rec") else { return };
    let graph = rec.graph();
    let pipeline = spawn(&graph, &[1, 3, HEIGHT, 320]);
    for (case, text) in [
        ("line-w321", "Bounded mailboxes"),
        ("line-w305", "Total 1,284.50 EUR"),
        ("line-w184", "stage-2 OK"),
    ] {
        let case = rec.cases.iter().find(|c| c.name == case).unwrap();
        let outputs = pipeline.run(case.feed()).unwrap();
        assert_eq!(decode(outputs[0].tensor().unwrap(), &graph), text);
    }
}
