package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
)

// What a command may be for the embedded server: fewer arguments than a real Redis allows, and shorter
// ones. miniredis takes whatever length a client sends, and ends the process where that makes no sense: "*0",
// or "$9223372036854775807".
const (
	maxCommandArgs = 1 << 20
	maxArgBytes    = 64 << 20
	maxHeadBytes   = 32 // of a line with a length, with its end
)

// soundConn passes on those bytes of a client that are whole commands of Redis' protocol: arrays of bulk
// strings. It leaves out empty arrays, as Redis does, and ends the connection at anything else, with
// Redis' own error.
type soundConn struct {
	net.Conn

	in   []byte // read and not looked at
	out  []byte // sound, and not passed on
	head []byte // of a line that has not ended
	args int    // still to come of a command
	body int    // bytes still to come of an argument, with its end
	err  error
}

func newSoundConn(c net.Conn) *soundConn { return &soundConn{Conn: c, in: make([]byte, 0, 4096)} }

func (c *soundConn) Read(p []byte) (int, error) {
	for len(c.out) == 0 {
		if c.err != nil {
			return 0, c.err
		}
		n, err := c.Conn.Read(c.in[:cap(c.in)])
		c.in = c.in[:n]
		if c.err = err; n == 0 {
			continue
		}
		if reason := c.sift(); reason != "" {
			_, _ = c.Write([]byte("-ERR Protocol error: " + reason + "\r\n"))
			c.err = errors.Join(io.EOF, fmt.Errorf("protocol error: %s", reason))
		}
	}
	n := copy(p, c.out)
	c.out = c.out[n:]
	return n, nil
}

// sift moves what is sound from in to out, and returns why the rest is not.
func (c *soundConn) sift() (reason string) {
	in := c.in
	for len(in) > 0 {
		if c.body > 0 {
			n := min(len(in), c.body)
			if !c.endsArg(in[:n]) {
				return "expected CRLF after an argument"
			}
			c.out, in, c.body = append(c.out, in[:n]...), in[n:], c.body-n
			continue
		}
		end := bytes.IndexByte(in, '\n') + 1
		if end == 0 {
			end = len(in)
		}
		c.head, in = append(c.head, in[:end]...), in[end:]
		if want := c.expects(); c.head[0] != want {
			return fmt.Sprintf("expected '%c'", want)
		}
		if len(c.head) > maxHeadBytes {
			return "invalid length"
		}
		if c.head[len(c.head)-1] == '\n' {
			if reason = c.begin(); reason != "" {
				return reason
			}
		}
	}
	return ""
}

// endsArg reports whether the next bytes of an argument are sound: its last two are its end.
func (c *soundConn) endsArg(next []byte) bool {
	const end = "\r\n"
	for i := max(0, c.body-len(end)); i < len(next); i++ {
		if next[i] != end[len(end)-c.body+i] {
			return false
		}
	}
	return true
}

// expects is what the next line begins with.
func (c *soundConn) expects() byte {
	if c.args > 0 {
		return '$'
	}
	return '*'
}

// begin reads a whole line with a length, and passes it on unless it is that of no command.
func (c *soundConn) begin() (reason string) {
	text, crlf := bytes.CutSuffix(c.head[1:], []byte("\r\n"))
	n, err := strconv.Atoi(string(text))
	switch {
	case !crlf || err != nil:
		return "invalid length"
	case c.args == 0 && n > maxCommandArgs:
		return "invalid multibulk length"
	case c.args > 0 && (n < 0 || n > maxArgBytes):
		return "invalid bulk length"
	case c.args == 0 && n <= 0:
	case c.args == 0:
		c.args, c.out = n, append(c.out, c.head...)
	default:
		c.args, c.body, c.out = c.args-1, n+2, append(c.out, c.head...)
	}
	c.head = c.head[:0]
	return ""
}
