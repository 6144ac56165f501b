//! Three models read a page: detection finds the lines, classification turns them upright,
//! recognition reads them.

use brigade::graph::Graph;
use brigade::{Pipeline, Tensor, Value};

use super::models;

/// Probability above which a pixel belongs to text.
const THRESHOLD: f32 = 0.3;
/// Height of a line for the classifier and the recogniser.
const HEIGHT: usize = 48;

/// A picture as the models take it: three channels, normalised.
struct Picture {
    height: usize,
    width: usize,
    data: Vec<f32>,
}

impl Picture {
    fn at(&self, c: usize, y: usize, x: usize) -> f32 {
        self.data[(c * self.height + y) * self.width + x]
    }

    fn crop(&self, (y0, y1): (usize, usize), (x0, x1): (usize, usize)) -> Self {
        let mut data = Vec::new();
        for c in 0..3 {
            for y in y0..y1 {
                data.extend((x0..x1).map(|x| self.at(c, y, x)));
            }
        }
        Self { height: y1 - y0, width: x1 - x0, data }
    }

    /// Bilinear, with half-pixel centres.
    fn resize(&self, height: usize, width: usize) -> Self {
        let place = |i: usize, to: usize, from: usize| {
            let p =
                ((i as f32 + 0.5) * from as f32 / to as f32 - 0.5).clamp(0.0, from as f32 - 1.0);
            let low = p.floor() as usize;
            (low, (low + 1).min(from - 1), p - p.floor())
        };
        let mut data = Vec::new();
        for c in 0..3 {
            for y in 0..height {
                let (y0, y1, fy) = place(y, height, self.height);
                for x in 0..width {
                    let (x0, x1, fx) = place(x, width, self.width);
                    let top = self.at(c, y0, x0) * (1.0 - fx) + self.at(c, y0, x1) * fx;
                    let low = self.at(c, y1, x0) * (1.0 - fx) + self.at(c, y1, x1) * fx;
                    data.push(top * (1.0 - fy) + low * fy);
                }
            }
        }
        Self { height, width, data }
    }

    fn turned(&self) -> Self {
        let plane = self.height * self.width;
        let data = self.data.chunks(plane).flat_map(|p| p.iter().rev().copied()).collect();
        Self { height: self.height, width: self.width, data }
    }

    fn tensor(&self) -> Tensor {
        Tensor::from_slice([1, 3, self.height, self.width], &self.data).unwrap()
    }
}

/// Runs of indices for which `inside` holds.
fn runs(length: usize, inside: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut start = None;
    for i in 0..=length {
        match (start, i < length && inside(i)) {
            (None, true) => start = Some(i),
            (Some(s), false) => {
                found.push((s, i));
                start = None;
            }
            _ => {}
        }
    }
    found
}

/// The boxes of the lines in a probability map, from top to bottom. The map marks the core of a
/// line; a line is about half its core's height larger on each side.
fn lines(map: &[f32], height: usize, width: usize) -> Vec<((usize, usize), (usize, usize))> {
    let row = |y: usize| map[y * width..(y + 1) * width].iter().any(|p| *p > THRESHOLD);
    let mut boxes = Vec::new();
    for (y0, y1) in runs(height, row) {
        let column = |x: usize| (y0..y1).any(|y| map[y * width + x] > THRESHOLD);
        let columns = runs(width, column);
        let (x0, x1) = (columns[0].0, columns[columns.len() - 1].1);
        let grow = (y1 - y0) / 2 + 1;
        boxes.push((
            (y0.saturating_sub(grow), (y1 + grow).min(height)),
            (x0.saturating_sub(grow), (x1 + grow).min(width)),
        ));
    }
    boxes
}

/// The text of greedy CTC: the best class at each step, repeats and blanks dropped.
fn decode(steps: &Tensor, graph: &Graph) -> String {
    let mut table: Vec<&str> = vec![""];
    table.extend(graph.metadata["character"].split('\n'));
    table.push(" ");
    let classes = steps.shape()[2];
    let (mut text, mut last) = (String::new(), usize::MAX);
    for row in steps.as_slice::<f32>().unwrap().chunks(classes) {
        let best = (0..classes).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
        if best != last && best > 0 && best < table.len() {
            text.push_str(table[best]);
        }
        last = best;
    }
    text
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
    let outputs: Vec<Value> = pipeline.run([("x", picture.tensor())]).unwrap();
    outputs.into_iter().next().unwrap().into_tensor().unwrap()
}

#[test]
fn the_ocr_trio_reads_its_text() {
    let [det, cls, rec] = ["ppocr-det", "ppocr-cls", "ppocr-rec"].map(models::one);
    let (Some(det), Some(cls), Some(rec)) = (det, cls, rec) else { return };
    let case = det.cases.iter().find(|c| c.name == "rendered-480x640").unwrap();
    let page = &case.inputs[0].tensor;
    let (height, width) = (page.shape()[2], page.shape()[3]);
    let page = Picture { height, width, data: page.as_slice::<f32>().unwrap().to_vec() };

    let detect = spawn(&det.graph(), &[1, 3, height, width]);
    let map = run(&detect, &page);
    let boxes = lines(map.as_slice::<f32>().unwrap(), height, width);

    let recogniser = rec.graph();
    let direction = spawn(&cls.graph(), &[1, 3, HEIGHT, 192]);
    let recognise = spawn(&recogniser, &[1, 3, HEIGHT, 320]);
    // Every second line is turned upside down, for the classifier to notice.
    let texts: Vec<String> = boxes
        .iter()
        .enumerate()
        .map(|(i, (rows, columns))| {
            let mut line = page.crop(*rows, *columns);
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
    assert_eq!(
        texts,
        [
            "Actor mailboxes are bounded.",
            "Stage 2 waits for stage 1.",
            "Total 1,284.50 EUR",
            "Invoice 2024-06-07"
        ]
    );
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
