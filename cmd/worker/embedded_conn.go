package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
)

// Bounds of a command of the embedded server, below those of a real Redis. miniredis takes any length that a
// client sends, and a senseless one, such as "*0" or "$9223372036854775807", ends the process.
const (
	maxCommandArgs = 1 << 20
	maxArgBytes    = 64 << 20
	passedOn       = 64 << 10 // bytes of a command that are passed on before the whole of it has come
)

// soundConn passes on the commands of a client, arrays of bulk strings in Redis's protocol. It leaves out empty
// arrays, as Redis does, and ends the connection at anything else, with Redis's own error.
type soundConn struct {
	net.Conn

	in   *bufio.Reader
	out  bytes.Buffer // checked, and not passed on yet
	args int          // of the current command, still to come
	err  error
}

func newSoundConn(c net.Conn) *soundConn { return &soundConn{Conn: c, in: bufio.NewReader(c)} }

func (c *soundConn) Read(p []byte) (int, error) {
	if c.out.Len() == 0 {
		for c.err == nil && (c.out.Len() == 0 || c.args > 0 && c.in.Buffered() > 0 && c.out.Len() < passedOn) {
			c.err = c.next()
		}
	}
	if c.out.Len() == 0 {
		return 0, c.err
	}
	return c.out.Read(p)
}

// next reads the head of a command, or an argument with its head.
func (c *soundConn) next() error {
	kind := byte('*')
	if c.args > 0 {
		kind = '$'
	}
	if first, err := c.in.Peek(1); err != nil {
		return err
	} else if first[0] != kind {
		return c.refuse(fmt.Sprintf("expected '%c'", kind))
	}
	head, err := c.in.ReadSlice('\n')
	if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
		return err
	}
	text, crlf := bytes.CutSuffix(head[1:], []byte("\r\n"))
	n, err := strconv.Atoi(string(text))
	switch {
	case !crlf || err != nil:
		return c.refuse("invalid length")
	case kind == '*' && n > maxCommandArgs:
		return c.refuse("invalid multibulk length")
	case kind == '*' && n <= 0:
		return nil
	case kind == '$' && (n < 0 || n > maxArgBytes):
		return c.refuse("invalid bulk length")
	}
	before := c.out.Len()
	_, _ = c.out.Write(head)
	if kind == '*' {
		c.args = n
		return nil
	}
	c.args--
	_, err = io.CopyN(&c.out, c.in, int64(n)+2) // out grows with what comes, not with what is announced
	if err == nil && !bytes.HasSuffix(c.out.Bytes(), []byte("\r\n")) {
		err = c.refuse("expected CRLF after an argument")
	}
	if err != nil {
		c.out.Truncate(before)
	}
	return err
}

// refuse answers a client with a protocol error.
func (c *soundConn) refuse(reason string) error {
	_, _ = c.Write([]byte("-ERR Protocol error: " + reason + "\r\n"))
	return errors.Join(io.EOF, fmt.Errorf("protocol error: %s", reason))
}
