//! The Mersenne Twister (MT19937), with which the reference of the specification draws.

/// Words of state.
const N: usize = 624;
/// How far ahead the word lies that a new one is mixed with.
const M: usize = 397;

/// A generator that gives what numpy's `RandomState` gives for the same seed.
#[derive(Debug)]
pub(super) struct MersenneTwister {
    state: [u32; N],
    next: usize,
}

impl MersenneTwister {
    pub(super) fn new(seed: u32) -> Self {
        let mut state = [seed; N];
        for k in 1..N {
            let last = state[k - 1];
            state[k] = (last ^ (last >> 30)).wrapping_mul(1_812_433_253).wrapping_add(k as u32);
        }
        Self { state, next: N }
    }

    fn renew(&mut self) {
        for k in 0..N {
            let mixed = (self.state[k] & 0x8000_0000) | (self.state[(k + 1) % N] & 0x7FFF_FFFF);
            let odd = if mixed & 1 == 1 { 0x9908_B0DF } else { 0 };
            self.state[k] = self.state[(k + M) % N] ^ (mixed >> 1) ^ odd;
        }
        self.next = 0;
    }

    fn word(&mut self) -> u32 {
        if self.next == N {
            self.renew();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9D2C_5680;
        y ^= (y << 15) & 0xEFC6_0000;
        y ^ (y >> 18)
    }

    /// A number in `0..1`, of 53 bits out of two words.
    pub(super) fn uniform(&mut self) -> f64 {
        let (high, low) = (self.word() >> 5, self.word() >> 6);
        (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
    }
}

#[cfg(test)]
mod tests {
    use super::MersenneTwister;

    #[test]
    fn words_are_those_that_the_authors_publish() {
        let mut twister = MersenneTwister::new(5489);
        assert_eq!(twister.word(), 3_499_211_612);
        let last = (0..9_999).map(|_| twister.word()).last();
        assert_eq!(last, Some(4_123_659_995), "the 10,000th, as C++ requires of mt19937");
    }

    #[test]
    fn numbers_are_those_of_numpy() {
        let mut twister = MersenneTwister::new(0);
        let drawn: Vec<f64> = (0..3).map(|_| twister.uniform()).collect();
        assert_eq!(
            drawn,
            [0.548_813_503_927_324_8, 0.715_189_366_372_419_5, 0.602_763_376_071_643_9]
        );
    }
}
