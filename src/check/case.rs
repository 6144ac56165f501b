//! Reading case folders.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::{Result, bail, err};
use crate::import;
use crate::tensor::Tensor;

/// How a case is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Once.
    Call,
    /// So many steps, with state.
    Stream(usize),
}

/// What an input of a stream case is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Role {
    /// Row *s* is fed at step *s*.
    #[serde(rename = "step")]
    Step,
    /// It is fed unchanged at every step.
    #[serde(rename = "constant")]
    Constant,
    /// It is fed at step 0; then an output takes its place.
    #[serde(rename = "initial state")]
    InitialState,
}

/// An input of a case.
#[derive(Clone, Debug)]
pub struct CaseInput {
    /// The graph's input.
    pub name: String,
    /// What is fed.
    pub tensor: Tensor,
    /// Its role, in a stream case.
    pub role: Role,
}

/// An output of a case.
#[derive(Clone, Debug)]
pub struct CaseOutput {
    /// The graph's output.
    pub name: String,
    /// What must come out; stacked over the steps in a stream case.
    pub tensor: Tensor,
    /// Largest error relative to the element that passes.
    pub rtol: f64,
    /// Largest absolute error that passes, on top. Both 0: it must be equal.
    pub atol: f64,
}

/// A case.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// How it is fed.
    pub kind: Kind,
    /// What is fed.
    pub inputs: Vec<CaseInput>,
    /// What must come out.
    pub outputs: Vec<CaseOutput>,
    /// Which output takes the place of each state input after a step.
    pub state: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Document {
    case: String,
    kind: String,
    steps: Option<usize>,
    inputs: Vec<Row>,
    outputs: Vec<Row>,
    state: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Row {
    name: String,
    file: String,
    role: Option<Role>,
    rtol: Option<f64>,
    atol: Option<f64>,
    exact: Option<bool>,
}

impl Case {
    /// Reads the case in a folder.
    ///
    /// # Errors
    /// If a file is missing or not what it should be; names it.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("case.json");
        let mut text = String::new();
        import::open_file(&path)
            .and_then(|mut file| Ok(file.read_to_string(&mut text)?))
            .map_err(|e| e.within(&format!("`{}`", path.display())))?;
        let doc: Document = serde_json::from_str(&text)
            .map_err(|e| err!(Format, "`{}` is no case", path.display()).with_source(e))?;
        let kind = match (doc.kind.as_str(), doc.steps) {
            ("call", _) => Kind::Call,
            ("stream", Some(steps)) => Kind::Stream(steps),
            (other, _) => bail!(Format, "`{}`: kind `{other}` without steps", path.display()),
        };
        let load = |row: &Row| -> Result<Tensor> {
            if row.file.contains(['/', '\\']) || row.file.starts_with('.') {
                bail!(Format, "`{}`: file `{}` is not beside it", path.display(), row.file);
            }
            import::read_npy(folder.join(&row.file))
        };
        let mut inputs = Vec::new();
        for row in &doc.inputs {
            let role = row.role.unwrap_or(Role::Constant);
            inputs.push(CaseInput { name: row.name.clone(), tensor: load(row)?, role });
        }
        let mut outputs = Vec::new();
        for row in &doc.outputs {
            let exact = row.exact.unwrap_or(false);
            let tolerance = |t: Option<f64>| match (exact, t) {
                (true, _) => Ok(0.0),
                (false, Some(t)) if t >= 0.0 => Ok(t),
                _ => Err(err!(
                    Format,
                    "`{}`: output `{}` has no tolerance",
                    path.display(),
                    row.name
                )),
            };
            outputs.push(CaseOutput {
                name: row.name.clone(),
                tensor: load(row)?,
                rtol: tolerance(row.rtol)?,
                atol: tolerance(row.atol)?,
            });
        }
        if outputs.is_empty() {
            bail!(Format, "`{}` expects no output", path.display());
        }
        Ok(Self { name: doc.case, kind, inputs, outputs, state: doc.state.unwrap_or_default() })
    }

    /// The inputs of a call, by name.
    pub fn feed(&self) -> Vec<(String, Tensor)> {
        self.inputs.iter().map(|i| (i.name.clone(), i.tensor.clone())).collect()
    }

    /// What step `s` of a stream feeds: the rows of its step inputs, by name.
    ///
    /// # Errors
    /// If an input has no such row.
    pub fn step(&self, s: usize) -> Result<Vec<(String, Tensor)>> {
        let mut out = Vec::new();
        for i in self.inputs.iter().filter(|i| i.role == Role::Step) {
            let row = i.tensor.rows(s, 1)?;
            let shape = row.shape()[1..].to_vec();
            out.push((i.name.clone(), row.reshape(shape)?));
        }
        Ok(out)
    }
}

/// The cases in `folder`: itself, if it holds a `case.json`, else those of its folders, by name.
///
/// # Errors
/// If there is none, or one cannot be read.
pub fn read_cases(folder: &Path) -> Result<Vec<Case>> {
    find_cases(folder)?.iter().map(|p| Case::read(p)).collect()
}

/// The folders of the cases in `folder`, as [`read_cases`] reads them; none is opened.
///
/// # Errors
/// If there is none, or the folder cannot be read.
pub fn find_cases(folder: &Path) -> Result<Vec<PathBuf>> {
    let holds_case = |folder: &Path| folder.join("case.json").symlink_metadata().is_ok();
    if holds_case(folder) {
        return Ok(vec![folder.to_owned()]);
    }
    let entries = std::fs::read_dir(folder)
        .map_err(|e| err!(Io, "cannot read folder `{}`", folder.display()).with_source(e))?;
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if holds_case(&path) {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        return Err(err!(Missing, "`{}` holds no case", folder.display())
            .with_help("a case is a folder with a `case.json` and its tensors"));
    }
    Ok(paths)
}
