package countapi

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"
	"unsafe"
)

// kernelStamped has the kernel note when bytes arrive at a connection, and returns what reads them with their age: how long
// before the return they arrived. Nil where the kernel can't, as for a connection that is none of TCP.
func kernelStamped(c net.Conn) func(p []byte) (n int, age time.Duration, err error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	var refused error
	err = raw.Control(func(fd uintptr) {
		refused = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_TIMESTAMPNS, 1)
	})
	if err != nil || refused != nil {
		return nil
	}
	return func(p []byte) (n int, age time.Duration, err error) {
		var noted [64]byte
		var size int
		waited := raw.Read(func(fd uintptr) bool {
			n, size, _, _, err = syscall.Recvmsg(int(fd), p, noted[:], 0)
			return !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR)
		})
		switch {
		case waited != nil:
			return 0, 0, waited
		case err != nil:
			return 0, 0, &net.OpError{Op: "read", Net: "tcp", Err: err}
		case n == 0 && len(p) > 0:
			return 0, 0, io.EOF
		}
		return n, ageOf(noted[:size]), nil
	}
}

// ageOf returns how long ago the moment was that the kernel noted, 0 where it noted none.
func ageOf(noted []byte) time.Duration {
	messages, err := syscall.ParseSocketControlMessage(noted)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		if m.Header.Level == syscall.SOL_SOCKET && m.Header.Type == syscall.SCM_TIMESTAMPNS {
			at := *(*syscall.Timespec)(unsafe.Pointer(&m.Data[0])) //nolint:gosec // what the kernel writes there
			return max(0, time.Duration(time.Now().UnixNano()-at.Nano()))
		}
	}
	return 0
}
