//! The parts of a Markdown text: fenced blocks and code in sentences.

/// A block between fences.
#[derive(PartialEq, Eq, Debug)]
pub struct Block {
    /// Line of its first line, from 1.
    pub line: usize,
    /// Language after the opening fence; may be empty.
    pub language: String,
    /// Its lines.
    pub lines: Vec<String>,
}

/// Code in a sentence or a table.
#[derive(PartialEq, Eq, Debug)]
pub struct Span {
    /// Line on which it begins, from 1.
    pub line: usize,
    /// Its text; a line break in it is a space.
    pub text: String,
}

/// Separates the fenced blocks of a text from the code in its sentences.
pub fn parts(text: &str) -> (Vec<Block>, Vec<Span>) {
    let (mut blocks, mut spans) = (Vec::new(), Vec::new());
    let mut block: Option<Block> = None;
    let mut paragraph: Vec<(usize, &str)> = Vec::new();
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line)) {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            add_spans(&mut paragraph, &mut spans);
            let opened = Block { line: number + 1, language: language.to_string(), lines: Vec::new() };
            match block.take() {
                Some(block) => blocks.push(block),
                None => block = Some(opened),
            }
        } else if let Some(block) = &mut block {
            block.lines.push(line.to_string());
        } else if line.trim().is_empty() || line.starts_with('|') {
            add_spans(&mut paragraph, &mut spans);
            paragraph.push((number, line));
            add_spans(&mut paragraph, &mut spans);
        } else {
            paragraph.push((number, line));
        }
    }
    add_spans(&mut paragraph, &mut spans);
    assert!(block.is_none(), "a fenced block isn't closed");
    (blocks, spans)
}

/// Adds the code of a paragraph, or of one row of a table, and clears it.
fn add_spans(paragraph: &mut Vec<(usize, &str)>, spans: &mut Vec<Span>) {
    let mut open: Option<Span> = None;
    for (line, text) in paragraph.drain(..) {
        if let Some(span) = &mut open {
            span.text.push(' ');
        }
        for (index, part) in text.split('`').enumerate() {
            if index > 0 {
                match open.take() {
                    Some(span) => spans.push(span),
                    None => open = Some(Span { line, text: String::new() }),
                }
            }
            if let Some(span) = &mut open {
                span.text.push_str(part.trim_start_matches("> "));
            }
        }
    }
}

#[test]
fn blocks_and_code_in_sentences_are_found() {
    let text = "Run `weft\nup` and `b`.\n\n```sh\nweft down\n```\n| `c` | `d |\n| e` |\n";
    let (blocks, spans) = parts(text);
    let lines = vec!["weft down".to_string()];
    assert_eq!(blocks, [Block { line: 5, language: "sh".into(), lines }]);
    let spans: Vec<(usize, &str)> = spans.iter().map(|span| (span.line, span.text.as_str())).collect();
    assert_eq!(spans, [(1, "weft up"), (2, "b"), (7, "c")]);
}
