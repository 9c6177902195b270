//! One function that uses all of the client, so that the linker keeps it. What is linked is measured
//! (`make firmware`) and never run: a processor without a board of ours has no startup and no network
//! here.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::panic::PanicInfo;

use fulmar_tiny::{Client, Event, Instant, KeyPair, Options, QoS, Resume, Session, Trust};

/// Calls what a program that embeds the client does.
// The linker finds where to begin by this name.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
extern "C" fn exercise(client: &mut Client, datagram: &mut [u8; 1472], entropy: &[u8; 32]) -> u32 {
    let now = Instant::from_millis(black_box(0));
    let resume = Resume { ticket: black_box(&datagram[..64]), age_ms: 0, early_data: true };
    let options = Options {
        server_name: "broker",
        trust: Trust::Ed25519(entropy),
        resume: Some(resume),
        session: Session { client_id: "sensor", ..Session::default() },
    };
    let key = KeyPair::new(black_box(entropy));
    let mut done = u32::from(client.connect(&options, &key, entropy, now).is_ok());
    done += u32::from(client.publish("reading", b"21.5", QoS::AtLeastOnce).is_ok());
    done += u32::from(client.subscribe("command", QoS::AtLeastOnce).is_ok());
    while black_box(true) {
        client.receive(datagram, now);
        client.on_deadline(now);
        while let Some(event) = client.poll_event(now) {
            done += u32::from(black_box(event) != Event::Ticket);
        }
        while let Some(len) = client.poll_transmit(datagram, now) {
            done += len as u32;
        }
        done += client.ticket().map_or(0, |ticket| u32::from(black_box(ticket)[0]));
        black_box(client.deadline());
    }
    client.close();
    done
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}
