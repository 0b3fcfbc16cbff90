//! From the parts of a message to its bytes, from the end to the beginning: what stands before a message is its length,
//! which is known then. The bytes are those that upstream's generated code makes.

use super::MAGIC;
use super::table::{Field, Message, Repeat, Type};
use super::tree::{self, Id, Node, Part, Tree};
use super::wire::Backward;

/// JSON that is no object of the kind that it should be.
#[derive(Debug, thiserror::Error)]
#[error("the object does not fit its type: {0}")]
pub struct Misfit(#[from] serde_json::Error);

/// Makes messages; its memory serves one after another.
#[derive(Default)]
pub struct Encoder {
    out: Backward,
}

impl Encoder {
    /// An object in its envelope.
    pub fn object(&mut self, of: &'static Message, type_of: [&str; 2], json: &[u8]) -> Result<&[u8], Misfit> {
        self.out.clear();
        self.envelope(of, type_of, json)?;
        Ok(self.out.written())
    }

    /// An object as a field of the message around it.
    pub fn field(&mut self, number: u32, of: &'static Message, json: &[u8]) -> Result<&[u8], Misfit> {
        self.out.clear();
        self.content(of, json)?;
        self.out.close(number, 0);
        Ok(self.out.written())
    }

    /// One event of a watch, with its length before it in four bytes. The event itself has no envelope.
    pub fn event(
        &mut self,
        event: &str,
        of: &'static Message,
        type_of: [&str; 2],
        json: &[u8],
    ) -> Result<&[u8], Misfit> {
        let out = &mut self.out;
        out.clear();
        self.envelope(of, type_of, json)?;
        let out = &mut self.out;
        // The object is the raw text of an extension.
        out.close(1, 0);
        out.close(2, 0);
        out.block(1, event.as_bytes());
        let length = u32::try_from(out.written().len()).unwrap_or(u32::MAX);
        out.raw(&length.to_be_bytes());
        Ok(out.written())
    }

    /// The bytes before and after the items of a list, whose fields have `items` bytes in all; `json` is the list without
    /// them.
    pub fn list(
        &mut self,
        of: &'static Message,
        type_of: [&str; 2],
        json: &[u8],
        items: usize,
    ) -> Result<(Vec<u8>, Vec<u8>), Misfit> {
        self.out.clear();
        self.content(of, json)?;
        let rest = self.out.written().to_vec();
        let behind = items_of(of) == 1;
        self.out.clear();
        self.out.block(4, b"");
        self.out.block(3, b"");
        let mut tail = self.out.written().to_vec();
        self.out.clear();
        if behind {
            tail.splice(..0, rest.iter().copied());
        } else {
            self.out.raw(&rest);
        }
        self.out.open(2, rest.len() + items);
        self.type_of(type_of);
        Ok((self.out.written().to_vec(), tail))
    }

    fn envelope(&mut self, of: &'static Message, type_of: [&str; 2], json: &[u8]) -> Result<(), Misfit> {
        self.out.block(4, b"");
        self.out.block(3, b"");
        let before = self.out.written().len();
        self.content(of, json)?;
        self.out.close(2, before);
        self.type_of(type_of);
        Ok(())
    }

    fn type_of(&mut self, [api_version, kind]: [&str; 2]) {
        let before = self.out.written().len();
        self.out.block(2, kind.as_bytes());
        self.out.block(1, api_version.as_bytes());
        self.out.close(1, before);
        self.out.raw(MAGIC);
    }

    fn content(&mut self, of: &'static Message, json: &[u8]) -> Result<(), Misfit> {
        let (tree, root) = tree::read(of, json)?;
        self.out.reserve(json.len());
        inside(&mut self.out, &tree, tree.node(root));
        Ok(())
    }
}

/// The number of the items in a list.
pub fn items_of(list: &'static Message) -> u32 {
    list.fields().iter().find(|field| field.name == "items").map_or(2, |field| field.number)
}

/// Writes what is in a message.
fn inside(out: &mut Backward, tree: &Tree<'_>, node: &Node<'_>) {
    let Part::Message { fields, last } = node.part else { return };
    let mut present = tree.chain(last).peekable();
    for field in fields.iter().rev() {
        match present.next_if(|node| node.number == field.number) {
            Some(node) => write(out, tree, node),
            None => absent(out, field),
        }
    }
    present.for_each(|node| write(out, tree, node));
}

fn write(out: &mut Backward, tree: &Tree<'_>, node: &Node<'_>) {
    match &node.part {
        Part::Varint(value) => out.varint(node.number, *value),
        Part::Double(value) => out.double(node.number, *value),
        Part::Block(bytes) => out.block(node.number, bytes),
        Part::List { last } => tree.chain(*last).for_each(|item| write(out, tree, item)),
        Part::Message { .. } => {
            let before = out.written().len();
            inside(out, tree, node);
            out.close(node.number, before);
        }
    }
}

/// A field that is not set: upstream writes its zero value where the Go type is no pointer, list or map.
fn absent(out: &mut Backward, field: &Field) {
    match (field.repeat, field.ty) {
        (Repeat::List | Repeat::Map, _) | (Repeat::One, Type::Bytes) => {}
        (Repeat::One, _) if field.optional => {}
        (_, Type::String | Type::Bytes) => out.block(field.number, b""),
        (_, Type::Int32 | Type::Int64 | Type::Bool) => out.varint(field.number, 0),
        (_, Type::Double) => out.double(field.number, 0.0),
        (_, Type::Message(of)) => out.block(field.number, of.zero(zero)),
    }
}

fn zero(of: &'static Message) -> Box<[u8]> {
    let (tree, root): (Tree<'_>, Id) = tree::zero(of);
    let mut out = Backward::default();
    inside(&mut out, &tree, tree.node(root));
    out.written().into()
}
