//! NORM's compact encodings of times, group sizes, rates and losses (RFC 5740 section 4.2 and RFC 5401).

use std::time::Duration;

const RTT_MIN: f64 = 1.0e-6;
const RTT_MAX: f64 = 1000.0;
/// Below it the scale is linear, in steps of a microsecond.
const LINEAR: f64 = 3.3e-5;

/// A round-trip time as a byte, rounded up; from one microsecond to 1000 seconds.
#[must_use]
pub fn quantize_rtt(rtt: Duration) -> u8 {
    let rtt = rtt.as_secs_f64().clamp(RTT_MIN, RTT_MAX);
    if rtt < LINEAR {
        return ((rtt / RTT_MIN).ceil() as u8).saturating_sub(1);
    }
    (255.0 - 13.0 * (RTT_MAX / rtt).ln()).ceil().clamp(0.0, 255.0) as u8
}

/// The round-trip time of a byte.
#[must_use]
pub fn rtt(quantized: u8) -> Duration {
    let seconds = if quantized < 31 {
        f64::from(quantized + 1) * RTT_MIN
    } else {
        RTT_MAX / ((255.0 - f64::from(quantized)) / 13.0).exp()
    };
    Duration::from_secs_f64(seconds)
}

/// A number of receivers as four bits, rounded up: 10, 50, 100 … 500,000,000.
#[must_use]
pub fn quantize_group(receivers: u32) -> u8 {
    let mut sizes: Vec<u8> = (0..16).collect();
    sizes.sort_by_key(|&size| group_size(size));
    sizes.into_iter().find(|&size| group_size(size) >= receivers).unwrap_or(15)
}

/// The number of receivers of four bits.
#[must_use]
pub fn group_size(quantized: u8) -> u32 {
    let mantissa = if quantized & 8 == 0 { 1 } else { 5 };
    mantissa * 10u32.pow(u32::from(quantized & 7) + 1)
}

/// A rate in bytes per second as 12 bits mantissa and 4 bits decimal exponent.
pub(crate) fn quantize_rate(bytes_per_s: f64) -> u16 {
    if bytes_per_s < 1.0 {
        return 1;
    }
    let exponent = bytes_per_s.log10().floor().clamp(0.0, 15.0);
    let mantissa = (bytes_per_s / 10f64.powf(exponent) * 409.6 + 0.5).clamp(0.0, 4095.0);
    (mantissa as u16) << 4 | exponent as u16
}

/// The rate in bytes per second.
pub(crate) fn rate(quantized: u16) -> f64 {
    f64::from(quantized >> 4) / 409.6 * 10f64.powi(i32::from(quantized & 15))
}

/// A share from 0 to 1 in 16 bits.
pub(crate) fn quantize_loss(share: f64) -> u16 {
    (share.clamp(0.0, 1.0) * 65535.0).round() as u16
}

/// The share from 0 to 1.
pub(crate) fn loss(quantized: u16) -> f64 {
    f64::from(quantized) / 65535.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_a_time_that_it_stands_for() {
        for byte in 1..=255 {
            assert!(rtt(byte) > rtt(byte - 1), "{byte}");
            let again = quantize_rtt(rtt(byte));
            assert!(again.abs_diff(byte) <= 1, "{byte} became {again}");
        }
    }

    #[test]
    fn times_are_rounded_up_by_a_twelfth_at_most() {
        for us in [40u64, 100, 999, 20_000, 50_000, 1_000_000, 7_000_000] {
            let time = Duration::from_micros(us);
            let said = rtt(quantize_rtt(time));
            assert!(said.as_secs_f64() > 0.999 * time.as_secs_f64(), "{us}");
            assert!(said.as_secs_f64() < 1.09 * time.as_secs_f64(), "{us}: {said:?}");
        }
        // These values are in NRL's table.
        assert_eq!(quantize_rtt(Duration::from_secs(1000)), 255);
        assert_eq!(quantize_rtt(Duration::ZERO), 0);
    }

    #[test]
    fn group_sizes_are_rounded_up() {
        for (receivers, said) in [(1, 10), (10, 10), (11, 50), (60, 100), (1000, 1000)] {
            assert_eq!(group_size(quantize_group(receivers)), said, "{receivers}");
        }
        assert_eq!(quantize_group(u32::MAX), 15);
    }

    #[test]
    fn rates_and_losses_keep_three_digits() {
        for value in [1.0, 8000.0, 1_250_000.0, 9.99e9] {
            let said = rate(quantize_rate(value));
            assert!((said / value - 1.0).abs() < 0.003, "{value}: {said}");
        }
        assert!((loss(quantize_loss(0.65)) - 0.65).abs() < 0.001);
        assert_eq!(quantize_loss(2.0), u16::MAX);
    }
}
