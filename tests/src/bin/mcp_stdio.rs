//! An MCP server on standard input and output that decides nothing: it is a pipe to the test, which listens on
//! the address given as the first argument, speaks the protocol and can hang up (which ends this process).

use std::io::{Write, copy, stdin, stdout};
use std::net::{Shutdown, TcpStream};

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).expect("usage: mcp_stdio HOST:PORT");
    let mut upstream = TcpStream::connect(address)?;
    let mut to_test = upstream.try_clone()?;
    let stubborn = std::env::args().any(|arg| arg == "--stubborn");
    std::thread::spawn(move || {
        let _ = copy(&mut stdin(), &mut to_test);
        // End of input is how a stdio server is asked to leave.
        if !stubborn {
            let _ = to_test.shutdown(Shutdown::Both);
        }
    });
    let mut out = stdout();
    let mut bytes = [0; 65536];
    loop {
        match std::io::Read::read(&mut upstream, &mut bytes)? {
            0 => return Ok(()),
            n => {
                out.write_all(&bytes[..n])?;
                out.flush()?;
            }
        }
    }
}
