//! What has been announced and may be referred to again: methods by number, and their regions.

use std::collections::HashMap;
use std::sync::Arc;

use crate::regions::{Region, Regions};

/// Regions remembered at most: 200 MB. What is announced beyond is written, but cannot be referred to.
const MAX_REGIONS: usize = 1 << 20;

/// Regions of one method that are remembered beside its first. Engines split a method into a handful.
const MAX_FURTHER: usize = 1024;

/// A method's name, source and module: those of its first announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Method {
    /// With its class.
    pub(crate) name: Box<[u8]>,
    /// Mostly the same for many methods in a row, and then shared.
    pub(crate) unit: Arc<Unit>,
    /// Where its first region begins.
    first: u64,
}

/// Where methods come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Source file; empty if it is not known.
    pub(crate) source: Box<[u8]>,
    /// Module; empty if it is not known.
    pub(crate) module: Box<[u8]>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Methods {
    methods: HashMap<u32, Method>,
    /// Further regions of the few methods that have several.
    further: HashMap<u32, Vec<u64>>,
    regions: Regions,
    last_unit: Arc<Unit>,
}

impl Methods {
    /// What is known of a method.
    pub(crate) fn get(&self, method: u32) -> Option<&Method> {
        self.methods.get(&method)
    }

    /// The region that holds `address`.
    pub(crate) fn at(&self, address: u64) -> Option<Region> {
        self.regions.at(address)
    }

    /// A unit to share, equal to this one.
    pub(crate) fn unit(&mut self, unit: Unit) -> Arc<Unit> {
        if *self.last_unit != unit {
            self.last_unit = Arc::new(unit);
        }
        Arc::clone(&self.last_unit)
    }

    /// Remembers a region that overlaps none; false if there is no room for it.
    pub(crate) fn add(&mut self, region: Region, name: &[u8], unit: Arc<Unit>) -> bool {
        if self.regions.len() >= MAX_REGIONS || !self.regions.insert(region) {
            return false;
        }
        let kept = region.method == 0 || self.add_method(region, name, unit);
        if !kept {
            self.regions.remove(region.start);
        }
        kept
    }

    fn add_method(&mut self, region: Region, name: &[u8], unit: Arc<Unit>) -> bool {
        if let Some(known) = self.methods.get(&region.method) {
            return known.first == region.start || self.add_further(region);
        }
        let mut own = Vec::new();
        if self.methods.try_reserve(1).is_err() || own.try_reserve_exact(name.len()).is_err() {
            return false;
        }
        own.extend_from_slice(name);
        self.methods.insert(region.method, Method { name: own.into_boxed_slice(), unit, first: region.start });
        true
    }

    fn add_further(&mut self, region: Region) -> bool {
        if self.further.try_reserve(1).is_err() {
            return false;
        }
        let further = self.further.entry(region.method).or_default();
        if further.contains(&region.start) {
            return true;
        }
        if further.len() >= MAX_FURTHER {
            // Those that something else has displaced since.
            let regions = &self.regions;
            further.retain(|start| regions.at(*start).is_some_and(|known| known.method == region.method));
        }
        let room = further.len() < MAX_FURTHER && further.try_reserve(1).is_ok();
        if room {
            further.push(region.start);
        }
        room
    }

    /// Removes a method and returns its regions.
    pub(crate) fn remove(&mut self, method: u32) -> Vec<Region> {
        let Some(known) = self.methods.remove(&method) else { return Vec::new() };
        let further = self.further.remove(&method).unwrap_or_default();
        let starts = std::iter::once(known.first).chain(further);
        let regions = &mut self.regions;
        starts
            .filter_map(|start| {
                // A region that was replaced may have another method's code in its place.
                let own = regions.at(start).is_some_and(|region| region.start == start && region.method == method);
                own.then(|| regions.remove(start)).flatten()
            })
            .collect()
    }

    /// Makes room for code of `method`: removes every other method that has a byte in the range, wholly, and what the
    /// method itself has there. Returns the regions that are gone.
    pub(crate) fn displace(&mut self, start: u64, end: u64, method: u32) -> Vec<Region> {
        let mut gone = Vec::new();
        while let Some(region) = self.regions.first_in(start, end) {
            let whole = region.method != method && region.method != 0;
            let removed = if whole { self.remove(region.method) } else { Vec::new() };
            gone.extend(removed);
            // Its own, or one that its method does not know of.
            gone.extend(self.regions.remove(region.start));
        }
        gone
    }

    /// Removes everything in a range of addresses, and returns the regions that are gone.
    pub(crate) fn clear(&mut self, start: u64, end: u64) -> Vec<Region> {
        self.displace(start, end, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(methods: &mut Methods, method: u32, start: u64) {
        let region = Region { start, size: 16, method };
        assert!(methods.add(region, b"f", Arc::default()));
    }

    fn starts(regions: &[Region]) -> Vec<u64> {
        regions.iter().map(|region| region.start).collect()
    }

    #[test]
    fn an_overlap_ends_the_older_method_with_all_its_regions() {
        let mut methods = Methods::default();
        for (method, start) in [(1, 0x100), (1, 0x200), (2, 0x300)] {
            add(&mut methods, method, start);
        }
        assert_eq!(starts(&methods.displace(0x20f, 0x218, 3)), [0x100, 0x200]);
        assert!(methods.get(1).is_none() && methods.get(2).is_some());
        assert!(methods.at(0x100).is_none() && methods.at(0x30f).is_some());
    }

    #[test]
    fn a_method_that_announces_a_region_again_keeps_its_others() {
        let mut methods = Methods::default();
        add(&mut methods, 1, 0x100);
        add(&mut methods, 1, 0x200);
        assert_eq!(starts(&methods.displace(0x100, 0x110, 1)), [0x100]);
        add(&mut methods, 1, 0x100);
        let mut all = starts(&methods.remove(1));
        all.sort_unstable();
        assert_eq!(all, [0x100, 0x200]);
        assert_eq!(methods.regions.len(), 0);
    }

    #[test]
    fn methods_of_one_file_share_its_name() {
        let mut methods = Methods::default();
        let unit = |source: &[u8]| Unit { source: source.into(), module: Box::default() };
        let (first, second) = (methods.unit(unit(b"a.c")), methods.unit(unit(b"a.c")));
        assert!(Arc::ptr_eq(&first, &second) && !Arc::ptr_eq(&first, &methods.unit(unit(b"b.c"))));
    }
}
