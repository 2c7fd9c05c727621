//! Sizes and offsets of the running kernel's structures, from its BTF.
//!
//! rustc emits no CO-RE relocations, and the one well-kept crate that reads BTF is under the LGPL; a search for one
//! type needs no more than the lengths of the others. The format: `Documentation/bpf/btf.rst`.
//!
//! ```text
//! header   magic u16 = 0xeb9f, version u8, flags u8, header length, type offset, type length, string offset, string length
//! type     name, info (bits 0-15 count, 24-28 kind, 31 flag), size or type; then by kind
//! member   name, type, offset in bits (with the flag: low 24 bits)
//! ```

use zerocopy::FromBytes;

/// Where a task's user registers lie when it is in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryRegisters {
    /// Offset of the address of its kernel stack in `task_struct`, in bytes.
    pub(super) task_stack: u64,
    /// Offset of the registers from the start of the kernel stack, in bytes: they are the last thing on it.
    pub(super) from_stack_start: u64,
}

impl EntryRegisters {
    /// Finds them. `None` if this is no BTF of a kernel.
    ///
    /// With another size of kernel stacks than assumed, what is read there is not the registers of a user mode, and
    /// the BPF program says so (`NoUserRegisters`).
    pub(super) fn find(btf: &[u8]) -> Option<Self> {
        let types = Types::parse(btf)?;
        let (_, members) = types.aggregate(STRUCT, b"task_struct")?;
        let task_stack = types.member_offset(members, b"stack")?;
        let (registers_bytes, _) = types.aggregate(STRUCT, b"pt_regs")?;
        Some(Self { task_stack, from_stack_start: KERNEL_STACK_BYTES.checked_sub(registers_bytes.into())? })
    }
}

/// The offset of the thread pointer of a task that runs, or has run last, in `task_struct`, in bytes. `None` if this is no
/// BTF of a kernel.
pub(super) fn thread_pointer(btf: &[u8]) -> Option<u64> {
    let types = Types::parse(btf)?;
    let (_, members) = types.aggregate(STRUCT, b"task_struct")?;
    let thread = types.member_offset(members, b"thread")?;
    let (_, members) = types.aggregate(STRUCT, b"thread_struct")?;
    Some(thread + types.member_offset(members, IN_THREAD)?)
}

/// Where the address of the first thread's stack begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StackStart {
    /// Offset of the address space in `task_struct`, in bytes.
    pub(super) task_mm: u64,
    /// Offset of the address in `mm_struct`, in bytes.
    pub(super) in_mm: u64,
}

impl StackStart {
    /// Finds it. `None` if this is no BTF of a kernel.
    pub(super) fn find(btf: &[u8]) -> Option<Self> {
        let types = Types::parse(btf)?;
        let (_, task) = types.aggregate(STRUCT, b"task_struct")?;
        let (_, space) = types.aggregate(STRUCT, b"mm_struct")?;
        Some(Self { task_mm: types.member_offset(task, b"mm")?, in_mm: types.member_offset(space, b"start_stack")? })
    }
}

/// Where it stands whose child a process is, and whether it is that one's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descent {
    /// Offset of the parent's task in `task_struct`, in bytes.
    pub(super) real_parent: u64,
    /// Offset of the process id in `task_struct`, in bytes.
    pub(super) tgid: u64,
    /// Offset of the first thread's task in `task_struct`, in bytes.
    pub(super) group_leader: u64,
    /// Offset of when the task was made in `task_struct`, in bytes.
    pub(super) start_time: u64,
    /// Offset of its flags in `task_struct`, in bytes.
    pub(super) flags: u64,
}

impl Descent {
    /// Finds it. `None` if this is no BTF of a kernel.
    pub(super) fn find(btf: &[u8]) -> Option<Self> {
        let types = Types::parse(btf)?;
        let (_, task) = types.aggregate(STRUCT, b"task_struct")?;
        let offset = |name: &[u8]| types.member_offset(task, name);
        Some(Self {
            real_parent: offset(b"real_parent")?,
            tgid: offset(b"tgid")?,
            group_leader: offset(b"group_leader")?,
            start_time: offset(b"start_time")?,
            flags: offset(b"flags")?,
        })
    }
}

/// The member of `thread_struct` that is the thread pointer.
#[cfg(target_arch = "x86_64")]
const IN_THREAD: &[u8] = b"fsbase";
/// The member of `thread_struct` that begins with the thread pointer.
#[cfg(not(target_arch = "x86_64"))]
const IN_THREAD: &[u8] = b"uw";

const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
/// How deeply structures without a name are looked for a member.
const MAX_UNNAMED: u32 = 4;

/// `THREAD_SIZE` of x86-64, and of arm64 with pages up to 16 KiB, in kernels without KASAN. BTF does not tell: the only
/// type of this size, `thread_union`, is not in it.
const KERNEL_STACK_BYTES: u64 = 16 << 10;

struct Types<'a> {
    types: &'a [u8],
    strings: &'a [u8],
}

/// The members of a structure, and how their offsets are written.
#[derive(Clone, Copy)]
struct Members<'a> {
    bytes: &'a [u8],
    with_bit_fields: bool,
}

/// A type.
struct Type<'a> {
    name: u32,
    info: u32,
    size: u32,
    /// What follows it, if it has members.
    members: Members<'a>,
}

impl Type<'_> {
    fn kind(&self) -> u32 {
        (self.info >> 24) & 0x1f
    }
}

impl<'a> Types<'a> {
    fn parse(btf: &'a [u8]) -> Option<Self> {
        let (magic, _) = u16::read_from_prefix(btf).ok()?;
        let (header, _) = <[u32; 6]>::read_from_prefix(btf).ok()?;
        let [_, header_len, type_offset, type_len, string_offset, string_len] = header;
        if magic != MAGIC {
            return None;
        }
        let section = |offset: u32, len: u32| {
            let start = usize::try_from(header_len.checked_add(offset)?).ok()?;
            btf.get(start..start.checked_add(usize::try_from(len).ok()?)?)
        };
        Some(Self { types: section(type_offset, type_len)?, strings: section(string_offset, string_len)? })
    }

    /// The size and the members of a structure or union with this name.
    fn aggregate(&self, kind: u32, name: &[u8]) -> Option<(u32, Members<'a>)> {
        let found = self.all().find(|found| found.kind() == kind && self.is_name(found.name, name))?;
        Some((found.size, found.members))
    }

    /// All types, the one that is called 1 first.
    fn all(&self) -> impl Iterator<Item = Type<'a>> + use<'a> {
        let mut rest = self.types;
        std::iter::from_fn(move || {
            let ([name, info, size], after) = <[u32; 3]>::read_from_prefix(rest).ok()?;
            let (bytes, next) = after.split_at_checked(detail_bytes((info >> 24) & 0x1f, info & 0xffff)?)?;
            rest = next;
            Some(Type { name, info, size, members: Members { bytes, with_bit_fields: info >> 31 != 0 } })
        })
    }

    fn member_offset(&self, members: Members<'_>, name: &[u8]) -> Option<u64> {
        self.offset_within(members, name, MAX_UNNAMED)
    }

    /// Of a member, in structures and unions without a name as well, as C looks for it.
    fn offset_within(&self, members: Members<'_>, name: &[u8], depth: u32) -> Option<u64> {
        let (all, _) = <[[u32; 3]]>::ref_from_prefix_with_elems(members.bytes, members.bytes.len() / 12).ok()?;
        let bytes = |offset: u32| u64::from(if members.with_bit_fields { offset & 0xff_ffff } else { offset } / 8);
        if let Some([_, _, offset]) = all.iter().find(|[name_offset, _, _]| self.is_name(*name_offset, name)) {
            return Some(bytes(*offset));
        }
        let inner = depth.checked_sub(1)?;
        all.iter().filter(|[name_offset, _, _]| self.is_name(*name_offset, b"")).find_map(|[_, id, offset]| {
            let found = self.all().nth(usize::try_from(id.checked_sub(1)?).ok()?)?;
            let within = matches!(found.kind(), STRUCT | UNION).then_some(found.members)?;
            Some(bytes(*offset) + self.offset_within(within, name, inner)?)
        })
    }

    fn is_name(&self, offset: u32, name: &[u8]) -> bool {
        let text = usize::try_from(offset).ok().and_then(|offset| self.strings.get(offset..));
        text.and_then(|text| text.strip_prefix(name)).is_some_and(|rest| rest.first() == Some(&0))
    }
}

/// Bytes that follow a type of this kind; `None` for a kind that is not known.
fn detail_bytes(kind: u32, count: u32) -> Option<usize> {
    let each = match kind {
        // Pointer, forward, typedef, volatile, const, restrict, function, float, type tag.
        2 | 7..=12 | 16 | 18 => 0,
        // Integer, variable, declaration tag: one word, whatever the count.
        1 | 14 | 17 => return Some(4),
        3 => return Some(12),
        // Structure, union, section, 64-bit enumeration.
        4 | 5 | 15 | 19 => 12,
        // Enumeration, function prototype.
        6 | 13 => 8,
        _ => return None,
    };
    usize::try_from(count).ok()?.checked_mul(each)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts BTF together, a type at a time.
    struct Builder {
        types: Vec<u32>,
        strings: Vec<u8>,
    }

    impl Builder {
        fn new() -> Self {
            Self { types: Vec::new(), strings: vec![0] }
        }

        fn name(&mut self, name: &str) -> u32 {
            let offset = self.strings.len() as u32;
            self.strings.extend(name.as_bytes());
            self.strings.push(0);
            offset
        }

        fn add(&mut self, name: &str, kind: u32, size: u32, bit_fields: bool, members: &[(&str, u32)]) -> &mut Self {
            let name = self.name(name);
            let info = (u32::from(bit_fields) << 31) | (kind << 24) | members.len() as u32;
            self.types.extend([name, info, size]);
            for (member, offset) in members {
                let member = self.name(member);
                self.types.extend([member, 1, *offset]);
            }
            self
        }

        fn words(&mut self, words: &[u32]) -> &mut Self {
            self.types.extend(words);
            self
        }

        fn bytes(&self) -> Vec<u8> {
            let types: Vec<u8> = self.types.iter().flat_map(|word| word.to_le_bytes()).collect();
            let header = [0x0001_eb9f, 24, 0, types.len() as u32, types.len() as u32, self.strings.len() as u32];
            let mut bytes: Vec<u8> = header.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
            bytes.extend(types);
            bytes.extend(&self.strings);
            bytes
        }
    }

    fn kernel() -> Vec<u8> {
        let mut builder = Builder::new();
        builder.add("int", 1, 4, false, &[]).words(&[32]);
        builder.add("task_struct_else", STRUCT, 8, false, &[("stack", 8)]);
        let thread = ("thread", 4096 * 8);
        builder.add(
            "task_struct",
            STRUCT,
            9000,
            true,
            &[
                ("state", 0),
                ("stack", (1 << 24) | (32 * 8)),
                ("mm", 70 * 8),
                ("tgid", 80 * 8),
                ("real_parent", 88 * 8),
                ("group_leader", 96 * 8),
                ("start_time", 104 * 8),
                ("flags", 4 * 8),
                thread,
            ],
        );
        builder.add("thread_struct", STRUCT, 80, false, &[("sp", 8), ("fsbase", 40 * 8), ("uw", 40 * 8)]);
        builder.add("pt_regs", STRUCT, 168, false, &[]);
        // As `mm_struct` is: nearly all of it in a structure without a name. The types before it are 1 to 5.
        builder.add("", STRUCT, 800, false, &[("count", 0), ("start_stack", 64 * 8)]);
        let (unnamed, empty) = (6, builder.name(""));
        let mm = builder.name("mm_struct");
        builder.words(&[mm, (STRUCT << 24) | 1, 900, empty, unnamed, 128 * 8]);
        builder.bytes()
    }

    #[test]
    fn registers_lie_at_the_end_of_the_kernel_stack() {
        let expected = EntryRegisters { task_stack: 32, from_stack_start: 16384 - 168 };
        assert_eq!(EntryRegisters::find(&kernel()), Some(expected));
    }

    #[test]
    fn the_thread_pointer_lies_in_a_part_of_the_task() {
        assert_eq!(thread_pointer(&kernel()), Some(4096 + 40));
    }

    #[test]
    fn a_member_is_found_in_a_structure_without_a_name() {
        assert_eq!(StackStart::find(&kernel()), Some(StackStart { task_mm: 70, in_mm: 128 + 64 }));
    }

    #[test]
    fn a_task_knows_its_process_and_who_has_made_it() {
        let expected = Descent { real_parent: 88, tgid: 80, group_leader: 96, start_time: 104, flags: 4 };
        assert_eq!(Descent::find(&kernel()), Some(expected));
    }

    #[test]
    fn structures_that_hold_each_other_end() {
        let mut builder = Builder::new();
        builder.add("task_struct", STRUCT, 8, false, &[("mm", 0)]);
        let (empty, mm) = (builder.name(""), builder.name("mm_struct"));
        builder.words(&[mm, (STRUCT << 24) | 2, 8, empty, 2, 0, empty, 2, 0]);
        assert_eq!(StackStart::find(&builder.bytes()), None);
    }

    #[test]
    fn btf_cut_anywhere_gives_nothing_and_crashes_nothing() {
        let bytes = kernel();
        for length in 0..bytes.len() {
            assert_eq!(EntryRegisters::find(&bytes[..length]), None, "length {length}");
            assert_eq!(thread_pointer(&bytes[..length]), None, "length {length}");
            assert_eq!(StackStart::find(&bytes[..length]), None, "length {length}");
            assert_eq!(Descent::find(&bytes[..length]), None, "length {length}");
        }
    }

    #[test]
    fn this_kernels_structures_are_found() {
        // Where tests run there may be a kernel without BTF; what is there must be readable.
        let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") else { return };
        let found = EntryRegisters::find(&bytes).expect("task_struct and pt_regs");
        assert!(found.task_stack < 4096 && found.from_stack_start > 4096, "{found:?}");
        assert!(thread_pointer(&bytes).expect("thread_struct") > found.task_stack);
        let start = StackStart::find(&bytes).expect("mm_struct");
        assert!(start.task_mm > 0 && start.in_mm > 0, "{start:?}");
        let descent = Descent::find(&bytes).expect("real_parent and tgid");
        let Descent { real_parent, tgid, group_leader, start_time, flags } = descent;
        assert!(
            tgid > 0 && real_parent > tgid && group_leader > real_parent && start_time > 0 && flags > 0,
            "{descent:?}"
        );
    }
}
