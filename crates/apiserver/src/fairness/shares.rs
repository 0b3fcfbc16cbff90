//! How many seats each priority level has: by its share, and by what levels lend each other where one needs more than it has and
//! another one less. Pure.
//!
//! Upstream counterpart: apiserver/pkg/util/flowcontrol, conc_alloc.go and the borrowing of apf_controller.go.

/// The bounds of a level's seats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// The seats of its share.
    pub nominal: u32,
    /// It lends no more than down to here.
    pub least: u32,
    /// It borrows no more than up to here.
    pub most: u32,
}

/// The configuration of a level's seats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    pub shares: u32,
    pub lendable_percent: u32,
    /// `None` borrows whatever there is.
    pub borrowing_percent: Option<u32>,
}

/// The bounds of each level for the seats of the server.
pub fn bounds(seats: u32, levels: &[Share]) -> Vec<Bounds> {
    let sum: f64 = levels.iter().map(|level| f64::from(level.shares)).sum();
    let of = |level: &Share| {
        let nominal = (f64::from(seats) * f64::from(level.shares) / sum.max(1.0)).ceil();
        let part = |percent: u32| (nominal * f64::from(percent) / 100.0).round();
        let most = level.borrowing_percent.map_or(f64::from(seats).max(nominal), |percent| nominal + part(percent));
        Bounds { nominal: nominal as u32, least: (nominal - part(level.lendable_percent)) as u32, most: most as u32 }
    };
    levels.iter().map(of).collect()
}

/// The demand of a level of late.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Demand {
    /// The most at any moment of the last period.
    pub highest: f64,
    /// Over the time of the last period, with its standard deviation.
    pub average: f64,
    pub deviation: f64,
    /// Smoothed over some periods.
    pub smooth: f64,
}

impl Demand {
    /// The seats that a level would have if there were enough.
    pub fn target(&self) -> f64 {
        self.smooth.max(1.0)
    }
}

/// The seats of each level now, and the part of what each wants that all have alike: as much more or less than it wants as all the
/// others, within its bounds.
pub fn allocated(seats: u32, levels: &[(Bounds, Demand)]) -> (Vec<u32>, f64) {
    // Seats that a level uses of its own are not lent.
    let lower = |(bounds, demand): &(Bounds, Demand)| {
        f64::from(bounds.least).max(f64::from(bounds.nominal).min(demand.highest))
    };
    let given = |level: &(Bounds, Demand), fraction: f64| {
        let low = lower(level);
        (fraction * level.1.target()).clamp(low, f64::from(level.0.most).max(low))
    };
    let sum = |fraction: f64| levels.iter().map(|level| given(level, fraction)).sum::<f64>();
    let (mut low, mut high) = (0.0, 1.0);
    while sum(high) < f64::from(seats) && high < 1e9 {
        high *= 2.0;
    }
    for _ in 0..64 {
        let middle = (low + high) / 2.0;
        if sum(middle) > f64::from(seats) { high = middle } else { low = middle }
    }
    (levels.iter().map(|level| given(level, low).round() as u32).collect(), low)
}

/// The demand of a level over time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Meter {
    /// Of the period that goes on: how long it is, in seconds, and the sums of the demand and of its square over time.
    seconds: f64,
    sum: f64,
    squares: f64,
    now: f64,
    highest: f64,
    smooth: f64,
}

/// How much of the demand before counts ten seconds later.
const REMEMBERED: f64 = 0.977;

impl Meter {
    /// Notes that the demand was as it was for `seconds`, and is another one now.
    pub fn set(&mut self, seconds: f64, demand: f64) {
        self.seconds += seconds;
        self.sum += self.now * seconds;
        self.squares += self.now * self.now * seconds;
        self.now = demand;
        self.highest = self.highest.max(demand);
    }

    /// Ends a period.
    pub fn period(&mut self) -> Demand {
        let average = if self.seconds > 0.0 { self.sum / self.seconds } else { self.now };
        let square = if self.seconds > 0.0 { self.squares / self.seconds } else { self.now * self.now };
        let deviation = (square - average * average).max(0.0).sqrt();
        let envelope = average + deviation;
        self.smooth = envelope.max(REMEMBERED * self.smooth + (1.0 - REMEMBERED) * envelope);
        let demand = Demand { highest: self.highest, average, deviation, smooth: self.smooth };
        *self = Meter { now: self.now, highest: self.now, smooth: self.smooth, ..Meter::default() };
        demand
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: [(u32, u32); 8] = [(0, 0), (5, 0), (30, 33), (40, 25), (10, 0), (40, 50), (100, 90), (20, 50)];

    fn usual() -> Vec<Bounds> {
        let share = |(shares, lendable_percent)| Share { shares, lendable_percent, borrowing_percent: None };
        bounds(600, &SHARES.map(share))
    }

    #[test]
    fn shares_become_seats_as_upstream_reckons() {
        let nominal: Vec<u32> = usual().iter().map(|bounds| bounds.nominal).collect();
        assert_eq!(nominal, [0, 13, 74, 98, 25, 98, 245, 49]);
        let least: Vec<u32> = usual().iter().map(|bounds| bounds.least).collect();
        assert_eq!(least, [0, 13, 50, 73, 25, 49, 24, 24]);
        let limited = Share { shares: 10, lendable_percent: 0, borrowing_percent: Some(50) };
        assert_eq!(bounds(10, &[limited])[0], Bounds { nominal: 10, least: 10, most: 15 });
    }

    #[test]
    fn what_one_does_not_need_another_gets() {
        let wants = |demands: [f64; 8]| {
            let levels: Vec<_> = usual()
                .into_iter()
                .zip(demands)
                .map(|(bounds, demand)| (bounds, Demand { highest: demand, smooth: demand, ..Demand::default() }))
                .collect();
            allocated(600, &levels)
        };
        let (busy, fraction) = wants([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5000.0]);
        assert!(busy[7] > 300, "{busy:?}");
        assert!(busy[..7].iter().zip(usual()).all(|(seats, bounds)| *seats >= bounds.least), "{busy:?}");
        assert!(fraction > 0.0 && fraction < 0.2, "a part of what the busy one wants: {fraction}");
        let (used, fraction) = wants([0.0, 0.0, 74.0, 98.0, 25.0, 98.0, 245.0, 5000.0]);
        assert!(used[6] >= 245 && used[7] <= 60, "nobody lends what it uses itself: {used:?}");
        assert!(used.iter().sum::<u32>() <= 610);
        assert!(fraction < 1e-6, "there is nothing beyond what each uses of its own: {fraction}");
    }

    #[test]
    fn demand_falls_slowly() {
        let mut meter = Meter::default();
        meter.set(0.0, 10.0);
        meter.set(10.0, 0.0);
        assert_eq!(meter.period(), Demand { highest: 10.0, average: 10.0, deviation: 0.0, smooth: 10.0 });
        meter.set(5.0, 4.0);
        meter.set(5.0, 0.0);
        let half = meter.period();
        assert_eq!((half.highest, half.average, half.deviation), (4.0, 2.0, 2.0));
        meter.set(10.0, 0.0);
        let later = meter.period();
        assert!(later.highest == 0.0 && later.smooth > 9.5 && later.smooth < 9.8, "{later:?}");
    }
}
