//! The connection to the server: an abstract socket that keeps the borders of messages, and passes descriptors.

#![allow(unsafe_code)]

use std::mem;

use bare::system_call::{Errno, system_call};
use farmem_control::{Hello, Message, VERSION};

use crate::environment::{NAME_BYTES_MAX, ServerAddress};

/// Bytes of the longest message.
const MESSAGE_BYTES_MAX: usize = 256;
/// Descriptors that come with a message, at most.
const DESCRIPTORS_MAX: usize = 2;

/// A descriptor of this process, which is closed when this is dropped.
pub(crate) struct Descriptor(i32);

impl Descriptor {
    /// Takes over what a system call returned.
    pub(crate) fn new(number: usize) -> Descriptor {
        Descriptor(number as i32)
    }

    pub(crate) fn number(&self) -> i32 {
        self.0
    }

    /// The same file with a number above those of the standard streams, which a program may have been started without.
    pub(crate) fn above_standard_streams(self) -> Result<Descriptor, Errno> {
        let first = libc::STDERR_FILENO + 1;
        if self.0 >= first {
            return Ok(self);
        }
        let arguments = [self.0 as usize, libc::F_DUPFD_CLOEXEC as usize, first as usize];
        // SAFETY: the call has no memory argument.
        unsafe { system_call(libc::SYS_fcntl, arguments) }.map(Descriptor::new)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor belongs to this value.
        let _ = unsafe { system_call(libc::SYS_close, [self.0 as usize]) };
    }
}

/// The address of an abstract socket: a zero, then its name.
#[repr(C)]
struct SocketAddress {
    family: u16,
    zero: u8,
    name: [u8; NAME_BYTES_MAX],
}

const _: () = assert!(size_of::<SocketAddress>() == size_of::<libc::sockaddr_un>());

/// A control message with descriptors.
#[repr(C)]
struct PassedDescriptors {
    header: libc::cmsghdr,
    numbers: [i32; DESCRIPTORS_MAX],
}

impl PassedDescriptors {
    fn new() -> PassedDescriptors {
        // SAFETY: zeros are a valid value of a structure of numbers.
        unsafe { mem::zeroed() }
    }

    fn bytes(count: usize) -> usize {
        size_of::<libc::cmsghdr>() + count * size_of::<i32>()
    }
}

/// An open connection.
pub(crate) struct Connection {
    socket: Descriptor,
}

impl Connection {
    /// Connects to the server.
    pub(crate) fn open(server: &ServerAddress) -> Result<Connection, Errno> {
        let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as usize;
        // SAFETY: the call has no memory argument.
        let socket = Descriptor::new(unsafe { system_call(libc::SYS_socket, [libc::AF_UNIX as usize, kind, 0]) }?);
        let socket = socket.above_standard_streams()?;
        let mut address = SocketAddress { family: libc::AF_UNIX as u16, zero: 0, name: [0; NAME_BYTES_MAX] };
        address.name.iter_mut().zip(server.name()).for_each(|(place, byte)| *place = *byte);
        let bytes = mem::offset_of!(SocketAddress, name) + server.name().len();
        // SAFETY: the kernel reads the address, which has more than `bytes` bytes.
        unsafe { system_call(libc::SYS_connect, [socket.number() as usize, &raw const address as usize, bytes]) }?;
        Ok(Connection { socket })
    }

    /// Sends the first message: `fork` is the number of the fork whose child this is, or 0.
    pub(crate) fn send_hello(&self, server: &ServerAddress, fork: u64) -> Result<(), Errno> {
        self.send(&Hello { version: VERSION, reserved: 0, secret: server.secret, fork }, None)
    }

    /// Sends a message, and a descriptor with it.
    pub(crate) fn send<T: Message>(&self, message: &T, descriptor: Option<&Descriptor>) -> Result<(), Errno> {
        let mut passed = PassedDescriptors::new();
        let mut part = libc::iovec { iov_base: std::ptr::from_ref(message).cast_mut().cast(), iov_len: size_of::<T>() };
        let mut header = header(&mut part);
        if let Some(descriptor) = descriptor {
            passed.header.cmsg_len = PassedDescriptors::bytes(1);
            passed.header.cmsg_level = libc::SOL_SOCKET;
            passed.header.cmsg_type = libc::SCM_RIGHTS;
            passed.numbers[0] = descriptor.number();
            header.msg_control = (&raw mut passed).cast();
            header.msg_controllen = size_of::<PassedDescriptors>();
        }
        let arguments = [self.number(), &raw const header as usize, libc::MSG_NOSIGNAL as usize];
        // SAFETY: the kernel reads the message and the control message, which live as long as the call.
        unsafe { system_call(libc::SYS_sendmsg, arguments) }.map(|_| ())
    }

    /// Waits for a message. `ECONNRESET` if the server has closed the connection.
    pub(crate) fn receive(&self) -> Result<Received, Errno> {
        let mut received =
            Received { bytes: [0; MESSAGE_BYTES_MAX], length: 0, descriptors: [const { None }; DESCRIPTORS_MAX] };
        let mut passed = PassedDescriptors::new();
        let mut part = libc::iovec { iov_base: received.bytes.as_mut_ptr().cast(), iov_len: MESSAGE_BYTES_MAX };
        let mut header = header(&mut part);
        header.msg_control = (&raw mut passed).cast();
        header.msg_controllen = size_of::<PassedDescriptors>();
        let arguments = [self.number(), &raw mut header as usize, libc::MSG_CMSG_CLOEXEC as usize];
        // SAFETY: the kernel writes at most as many bytes as the buffers have.
        received.length = unsafe { system_call(libc::SYS_recvmsg, arguments) }?;
        if received.length == 0 {
            return Err(Errno(libc::ECONNRESET));
        }
        if header.msg_controllen >= size_of::<libc::cmsghdr>() && passed.header.cmsg_type == libc::SCM_RIGHTS {
            let count = passed.header.cmsg_len.saturating_sub(PassedDescriptors::bytes(0)) / size_of::<i32>();
            let places = received.descriptors.iter_mut().zip(passed.numbers).take(count);
            places.for_each(|(place, number)| *place = Some(Descriptor(number)));
        }
        Ok(received)
    }

    /// The socket.
    pub(crate) fn socket(&self) -> &Descriptor {
        &self.socket
    }

    fn number(&self) -> usize {
        self.socket.number() as usize
    }
}

fn header(part: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: zeros are a valid value: no address, no parts, no control message.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = part;
    header.msg_iovlen = 1;
    header
}

/// A message of the server.
pub(crate) struct Received {
    bytes: [u8; MESSAGE_BYTES_MAX],
    length: usize,
    /// What came with it, in the order of the protocol.
    pub(crate) descriptors: [Option<Descriptor>; DESCRIPTORS_MAX],
}

impl Received {
    /// The message, if it is one of this kind: no two have the same length.
    pub(crate) fn message<T: Message>(&self) -> Option<T> {
        const { assert!(size_of::<T>() <= MESSAGE_BYTES_MAX, "a message fits into the buffer") };
        // SAFETY: the buffer has as many bytes, and any bytes are a valid message.
        (self.length == size_of::<T>()).then(|| unsafe { self.bytes.as_ptr().cast::<T>().read_unaligned() })
    }
}
