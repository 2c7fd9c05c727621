//! Names of methods: symbols in the constant pool of their class.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use foldhash::HashMap;
use jitprof_common::units::Avma;

use super::layout::{Field, Fields, Layout, plus};
use crate::{Memory, ReadError, Reader};

/// Bytes of a blob's name.
const MAX_BLOB_NAME: usize = 128;
/// Bytes of a symbol that are read. A symbol may have 65535; what is longer is cut.
const MAX_SYMBOL: usize = 1024;
/// Constants that a pool can have, and bytes of each.
const MAX_CONSTANTS: i64 = 65535;
const SLOT: usize = 8;
/// Bytes of a table of lines that are fetched before it is looked at: most have no more.
const LINES: usize = 128;

/// What a method is called, as its class file has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MethodName {
    /// Its class, as in `java/lang/String`.
    pub class: Arc<str>,
    /// Its own name.
    pub method: Arc<str>,
    /// What it takes and gives, as in `(I)Ljava/lang/Object;`.
    pub signature: Arc<str>,
}

impl MethodName {
    /// The class as it is written in Java: `java.lang.String`.
    pub fn class_in_java(&self) -> String {
        let (class, address) = self.hidden();
        class.replace('/', ".") + &address.map_or_else(String::new, |address| format!("/{address}"))
    }

    /// As the runtime's tool interface has it, so that perf's agent for the JVM writes it: `Ljava/lang/String;indexOf(I)I`.
    pub fn in_class_file(&self) -> String {
        self.in_class_file_with("")
    }

    /// The same, with something behind it.
    pub fn in_class_file_with(&self, behind: &str) -> String {
        let (class, address) = self.hidden();
        let (point, address) = address.map_or(("", ""), |address| (".", address));
        let (method, signature): (&str, &str) = (&self.method, &self.signature);
        ["L", class, point, address, ";", method, signature, behind].concat()
    }

    /// A hidden class, as that of a lambda, has an address behind its name, and each interface of the runtime shows it
    /// behind another sign than the `+` that it has itself.
    fn hidden(&self) -> (&str, Option<&str>) {
        let hidden = self.class.rsplit_once('+').filter(|(_, address)| address.starts_with("0x"));
        hidden.map_or((&self.class, None), |(class, address)| (class, Some(address)))
    }
}

/// As `jcmd PID Compiler.perfmap` writes it: `int java.lang.String.indexOf(int)`.
impl fmt::Display for MethodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (arguments, result) = self.signature.strip_prefix('(').and_then(|rest| rest.split_once(')')).unzip();
        if let Some((result, _)) = result.and_then(written_type) {
            write!(f, "{result} ")?;
        }
        write!(f, "{}.{}(", self.class_in_java(), self.method)?;
        let mut rest = arguments.unwrap_or("");
        let mut first = true;
        while let Some((argument, behind)) = written_type(rest) {
            write!(f, "{}{argument}", if first { "" } else { ", " })?;
            (first, rest) = (false, behind);
        }
        f.write_str(")")
    }
}

/// The first type of a signature as it is written in Java, and what is behind it.
fn written_type(signature: &str) -> Option<(String, &str)> {
    let element = signature.trim_start_matches('[');
    let dimensions = signature.len() - element.len();
    let (name, behind) = match element.chars().next()? {
        'B' => ("byte".to_owned(), &element[1..]),
        'C' => ("char".to_owned(), &element[1..]),
        'D' => ("double".to_owned(), &element[1..]),
        'F' => ("float".to_owned(), &element[1..]),
        'I' => ("int".to_owned(), &element[1..]),
        'J' => ("long".to_owned(), &element[1..]),
        'S' => ("short".to_owned(), &element[1..]),
        'V' => ("void".to_owned(), &element[1..]),
        'Z' => ("boolean".to_owned(), &element[1..]),
        'L' => {
            let (class, behind) = element[1..].split_once(';')?;
            (class.replace('/', "."), behind)
        }
        _ => return None,
    };
    Some((name + &"[]".repeat(dimensions), behind))
}

/// Strings of which one copy is kept, however many methods have them.
#[derive(Debug, Default)]
pub(super) struct Strings {
    kept: HashSet<Arc<str>>,
    prune_at: usize,
}

impl Strings {
    pub(super) fn keep(&mut self, string: &str) -> Arc<str> {
        if let Some(kept) = self.kept.get(string) {
            return kept.clone();
        }
        let kept: Arc<str> = string.into();
        self.kept.insert(kept.clone());
        kept
    }

    /// Bytes of all of them, nearly.
    pub(super) fn bytes(&self) -> usize {
        self.kept.iter().map(|string| string.len() + 48).sum()
    }

    /// Drops those that nothing has any more, if there are many more than there were last time.
    pub(super) fn prune(&mut self) {
        if self.kept.len() > self.prune_at {
            self.kept.retain(|string| Arc::strong_count(string) > 1);
            self.prune_at = 2 * self.kept.len() + 1024;
        }
    }
}

/// Reads names, each thing once for as long as it lives. It must not outlive the time between two looks at what has the
/// names, of which only what was the same all that time is believed; the pages of the reader may be dropped meanwhile. The
/// target chooses where everything is, and not what collides, as the hash of each map has a seed.
pub(super) struct Names<'a, M> {
    pub(super) layout: &'a Layout,
    pub(super) reader: &'a Reader<M>,
    /// Of what never changes of a method: its pool, and which constants of that its name and its signature are.
    of_constant: Fields<3>,
    strings: &'a mut Strings,
    blobs: HashMap<u64, Option<Arc<str>>>,
    symbols: HashMap<u64, Arc<str>>,
    pools: HashMap<u64, Pool>,
    /// Of methods that were asked for with their lines, which is done again and again.
    methods: HashMap<u64, MethodName>,
}

/// What names of methods have of a pool: the name of its class, and how many constants there are.
#[derive(Clone)]
struct Pool {
    class: Arc<str>,
    count: i64,
}

impl<'a, M: Memory> Names<'a, M> {
    pub(super) fn new(layout: &'a Layout, reader: &'a Reader<M>, strings: &'a mut Strings) -> Self {
        let at = &layout.method;
        let of_constant = Fields::new([at.constants, at.name_index, at.signature_index]);
        let (blobs, symbols, pools) = (HashMap::default(), HashMap::default(), HashMap::default());
        Self { layout, reader, of_constant, strings, blobs, symbols, pools, methods: HashMap::default() }
    }

    /// The runtime's own name for blobs, where that can be one.
    pub(super) fn blob(&mut self, name: Avma) -> Option<Arc<str>> {
        if let Some(known) = self.blobs.get(&name.0) {
            return known.clone();
        }
        let read = self.reader.c_string(name, MAX_BLOB_NAME).ok().filter(|name| is_plain(name));
        let read = read.map(|name| self.strings.keep(&String::from_utf8_lossy(&name)));
        self.blobs.insert(name.0, read.clone());
        read
    }

    /// Fetches what the names of methods are read from: of all of them one level of pointers after another, for one name leads
    /// from page to page. All that is found is read again by what reads the names, which comes to the same places unless what
    /// it finds is no name.
    pub(super) fn prefetch(&self, methods: &[Avma]) {
        let (at, reader) = (&self.layout.method, self.reader);
        prefetch(reader, methods, &[at.const_method]);
        let constants = targets(reader, methods, at.const_method);
        reader.prefetch(constants.iter().filter_map(|constant| self.of_constant.place(*constant)));
        let named = constants.iter().filter_map(|constant| self.of_constant.fetched(reader, *constant));
        let named: Vec<[i64; 3]> = named.collect();
        let pools = each_once(named.iter().map(|[pool, ..]| Avma(pool.cast_unsigned())));
        prefetch(reader, &pools, &[at.pool_holder, at.pool_length]);
        let holders = targets(reader, &pools, at.pool_holder);
        prefetch(reader, &holders, &[at.klass_name]);
        self.prefetch_symbols(targets(reader, &holders, at.klass_name).into_iter());
        self.prefetch_constants(&self.slots_of_names(&named));
    }

    /// The same for the files and lines of methods.
    pub(super) fn prefetch_places(&self, methods: &[Avma]) {
        let (at, reader) = (&self.layout.method, self.reader);
        prefetch(reader, methods, &[at.const_method]);
        let constants = targets(reader, methods, at.const_method);
        prefetch(reader, &constants, &[at.constants, at.code_size, at.const_flags]);
        let pools = targets(reader, &constants, at.constants);
        let of_pool = |pool: &Avma| [at.pool_source_file, at.pool_length].map(|field| field.place(*pool));
        let of_pools = pools.iter().flat_map(of_pool).flatten();
        let lines = constants.iter().filter_map(|constant| Some((self.fetched_lines(*constant)?, LINES)));
        reader.prefetch(of_pools.chain(lines));
        let slot = |pool: &Avma| self.fetched_slot(*pool, at.pool_source_file.fetched(reader, *pool)?);
        let slots: Vec<Avma> = pools.iter().filter_map(slot).collect();
        self.prefetch_constants(&slots);
    }

    /// Where the lines of a method are, if it has some.
    fn fetched_lines(&self, constant: Avma) -> Option<Avma> {
        let (at, reader) = (&self.layout.method, self.reader);
        let has_lines = at.const_flags.fetched(reader, constant)? & at.const_has_lines != 0;
        let bytes = at.code_size.fetched(reader, constant)?.cast_unsigned();
        if has_lines { self.layout.lines_behind(constant, bytes).ok() } else { None }
    }

    /// Where the constants are that name methods, each of which has a pool and two of its constants.
    fn slots_of_names(&self, named: &[[i64; 3]]) -> Vec<Avma> {
        let slots = named.iter().flat_map(|[pool, indices @ ..]| {
            let pool = Avma(pool.cast_unsigned());
            let count = self.layout.method.pool_length.fetched(self.reader, pool);
            indices.iter().filter_map(move |index| self.slot(pool, count?, *index).ok())
        });
        slots.collect()
    }

    fn fetched_slot(&self, pool: Avma, index: i64) -> Option<Avma> {
        let count = self.layout.method.pool_length.fetched(self.reader, pool)?;
        self.slot(pool, count, index).ok()
    }

    fn prefetch_constants(&self, slots: &[Avma]) {
        self.reader.prefetch(slots.iter().map(|slot| (*slot, SLOT)));
        let symbol = |slot: &Avma| {
            let mut word = [0; SLOT];
            self.reader.fetched(*slot, &mut word)?;
            Some(symbol_of(u64::from_le_bytes(word)))
        };
        self.prefetch_symbols(slots.iter().filter_map(symbol));
    }

    /// Of symbols that are known nothing is read.
    fn prefetch_symbols(&self, symbols: impl Iterator<Item = Avma>) {
        let (at, reader) = (&self.layout.method, self.reader);
        let symbols = each_once(symbols.filter(|symbol| !self.symbols.contains_key(&symbol.0)));
        prefetch(reader, &symbols, &[at.symbol_length]);
        let body = |symbol: &Avma| {
            let bytes = usize::try_from(at.symbol_length.fetched(reader, *symbol)?).unwrap_or(0);
            Some((at.symbol_body.within(*symbol).ok()?, bytes.min(MAX_SYMBOL)))
        };
        reader.prefetch(symbols.iter().filter_map(body));
    }

    /// The name of a method.
    pub(super) fn method(&mut self, method: Avma) -> Result<MethodName, ReadError> {
        let constant = self.layout.method.const_method.pointer(self.reader, method)?;
        let [pool, name, signature] = self.of_constant.read(self.reader, constant)?;
        let pool = Avma(pool.cast_unsigned());
        let Pool { class, count } = self.pool(pool)?;
        Ok(MethodName {
            class,
            method: self.constant(pool, count, name)?,
            signature: self.constant(pool, count, signature)?,
        })
    }

    /// The same of one that is asked for more than once.
    pub(super) fn known_method(&mut self, method: Avma) -> Result<MethodName, ReadError> {
        if let Some(name) = self.methods.get(&method.0) {
            return Ok(name.clone());
        }
        let name = self.method(method)?;
        self.methods.insert(method.0, name.clone());
        Ok(name)
    }

    fn pool(&mut self, pool: Avma) -> Result<Pool, ReadError> {
        if let Some(known) = self.pools.get(&pool.0) {
            return Ok(known.clone());
        }
        let at = &self.layout.method;
        let holder = at.pool_holder.pointer(self.reader, pool)?;
        let class = self.symbol(at.klass_name.pointer(self.reader, holder)?)?;
        let known = Pool { class, count: at.pool_length.read(self.reader, pool)? };
        self.pools.insert(pool.0, known.clone());
        Ok(known)
    }

    /// The file that a method's class was compiled from, if the class says so.
    pub(super) fn file(&mut self, method: Avma) -> Result<Option<Arc<str>>, ReadError> {
        let at = &self.layout.method;
        let constant = at.const_method.pointer(self.reader, method)?;
        let pool = at.constants.pointer(self.reader, constant)?;
        let index = at.pool_source_file.read(self.reader, pool)?;
        if index == 0 {
            return Ok(None);
        }
        let count = at.pool_length.read(self.reader, pool)?;
        self.constant(pool, count, index).map(Some)
    }

    /// A constant of a pool that has so many.
    fn constant(&mut self, pool: Avma, count: i64, index: i64) -> Result<Arc<str>, ReadError> {
        let slot = self.slot(pool, count, index)?;
        self.symbol(symbol_of(self.reader.u64(slot)?))
    }

    /// Where a pool of so many constants has one of them.
    fn slot(&self, pool: Avma, count: i64, index: i64) -> Result<Avma, ReadError> {
        if !(1..count.min(MAX_CONSTANTS)).contains(&index) {
            return Err(ReadError::Malformed { what: "constant of a class", address: pool.0 });
        }
        plus(pool, self.layout.method.pool_bytes + SLOT as u64 * index.cast_unsigned())
    }

    fn symbol(&mut self, symbol: Avma) -> Result<Arc<str>, ReadError> {
        if let Some(string) = self.symbols.get(&symbol.0) {
            return Ok(string.clone());
        }
        let at = &self.layout.method;
        let length = usize::try_from(at.symbol_length.read(self.reader, symbol)?).unwrap_or(0);
        let mut bytes = vec![0; length.min(MAX_SYMBOL)];
        self.reader.bytes(at.symbol_body.within(symbol)?, &mut bytes)?;
        // A name without characters, or with such as control a terminal, is none that a class file can have.
        if bytes.is_empty() || bytes.iter().any(u8::is_ascii_control) {
            return Err(ReadError::Malformed { what: "name", address: symbol.0 });
        }
        let string = self.strings.keep(&text(&bytes));
        self.symbols.insert(symbol.0, string.clone());
        Ok(string)
    }
}

/// The symbol that a constant is: the lowest bit is a mark of the pool's own.
fn symbol_of(constant: u64) -> Avma {
    Avma(constant & !1)
}

/// Fetches fields of objects.
fn prefetch<M: Memory>(reader: &Reader<M>, objects: &[Avma], fields: &[Field]) {
    let places = |object: &Avma| {
        let object = *object;
        fields.iter().filter_map(move |field| field.place(object))
    };
    reader.prefetch(objects.iter().flat_map(places));
}

/// Where the pointers lead that objects have in a field, as far as that has been fetched: each place once.
fn targets<M: Memory>(reader: &Reader<M>, objects: &[Avma], field: Field) -> Vec<Avma> {
    each_once(objects.iter().filter_map(|object| field.fetched_pointer(reader, *object)))
}

/// Places in their order, each once.
pub(super) fn each_once(places: impl Iterator<Item = Avma>) -> Vec<Avma> {
    let mut places: Vec<Avma> = places.collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// Whether a name of a blob can be one.
fn is_plain(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ')
}

/// Java's own form of UTF-8 has characters beyond 16 bits as two surrogates of three bytes each.
fn text(bytes: &[u8]) -> String {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.to_owned();
    }
    let mut units = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, behind @ ..] = rest {
        let (unit, behind) = match (*first, behind) {
            (0..0x80, _) => (u16::from(*first), behind),
            (0xc0..0xe0, [second, behind @ ..]) => ((u16::from(first & 0x1f) << 6) | u16::from(second & 0x3f), behind),
            (0xe0..0xf0, [second, third, behind @ ..]) => {
                let high = (u16::from(first & 0xf) << 12) | (u16::from(second & 0x3f) << 6);
                (high | u16::from(third & 0x3f), behind)
            }
            _ => (0xfffd, behind),
        };
        units.push(unit);
        rest = behind;
    }
    String::from_utf16_lossy(&units)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(class: &str, method: &str, signature: &str) -> MethodName {
        MethodName { class: class.into(), method: method.into(), signature: signature.into() }
    }

    #[test]
    fn methods_are_written_as_the_runtime_writes_them() {
        let cases = [
            (name("java/lang/String", "hashCode", "()I"), "int java.lang.String.hashCode()"),
            (name("java/lang/String", "<init>", "([CI)V"), "void java.lang.String.<init>(char[], int)"),
            (
                name("A", "f", "([[I[Ljava/lang/String;DZ)[[B"),
                "byte[][] A.f(int[][], java.lang.String[], double, boolean)",
            ),
            (name("p/B$$Lambda$1+0x0800c", "g", "()V"), "void p.B$$Lambda$1/0x0800c.g()"),
            (name("a+b", "g", "()V"), "void a+b.g()"),
            (name("A", "broken", "(Lx"), "A.broken()"),
            (name("A", "broken", "(Q)"), "A.broken()"),
        ];
        for (name, written) in cases {
            assert_eq!(name.to_string(), written);
        }
        assert_eq!(name("java/lang/String", "hashCode", "()I").in_class_file(), "Ljava/lang/String;hashCode()I");
        assert_eq!(name("p/B$$Lambda+0x0800c", "g", "()V").in_class_file(), "Lp/B$$Lambda.0x0800c;g()V");
    }

    #[test]
    fn names_beyond_the_basic_plane_are_put_together_again() {
        assert_eq!(text("größe".as_bytes()), "größe");
        assert_eq!(text(b"a\xed\xa0\xbd\xed\xb8\x80b"), "a\u{1f600}b");
        assert_eq!(text(b"\xc0\x80"), "\0");
        assert_eq!(text(b"\xff\xe0"), "\u{fffd}\u{fffd}");
    }
}
