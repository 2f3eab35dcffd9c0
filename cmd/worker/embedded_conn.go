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
)

// soundConn passes on the commands of a client, arrays of bulk strings in Redis's protocol. It leaves out empty
// arrays, as Redis does, and ends the connection at anything else, with Redis's own error.
type soundConn struct {
	net.Conn

	in   *bufio.Reader
	out  []byte // checked, and not passed on yet
	args int    // of the current command, still to come
	err  error
}

func newSoundConn(c net.Conn) *soundConn { return &soundConn{Conn: c, in: bufio.NewReader(c)} }

func (c *soundConn) Read(p []byte) (int, error) {
	for len(c.out) == 0 {
		if c.err != nil {
			return 0, c.err
		}
		c.out, c.err = c.next()
	}
	n := copy(p, c.out)
	c.out = c.out[n:]
	return n, nil
}

// next reads the head of a command, or an argument with its head. It returns nothing for an empty command.
func (c *soundConn) next() ([]byte, error) {
	kind := byte('*')
	if c.args > 0 {
		kind = '$'
	}
	if first, err := c.in.Peek(1); err != nil {
		return nil, err
	} else if first[0] != kind {
		return nil, c.refuse(fmt.Sprintf("expected '%c'", kind))
	}
	head, err := c.in.ReadSlice('\n')
	if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
		return nil, err
	}
	text, crlf := bytes.CutSuffix(head[1:], []byte("\r\n"))
	n, err := strconv.Atoi(string(text))
	switch {
	case !crlf || err != nil:
		return nil, c.refuse("invalid length")
	case kind == '*' && n > maxCommandArgs:
		return nil, c.refuse("invalid multibulk length")
	case kind == '*' && n <= 0:
		return nil, nil
	case kind == '*':
		c.args = n
		return bytes.Clone(head), nil
	case n < 0 || n > maxArgBytes:
		return nil, c.refuse("invalid bulk length")
	}
	c.args--
	arg := bytes.NewBuffer(bytes.Clone(head)) // grows with what comes, not with what is announced
	if _, err := io.CopyN(arg, c.in, int64(n)+2); err != nil {
		return nil, err
	}
	if !bytes.HasSuffix(arg.Bytes(), []byte("\r\n")) {
		return nil, c.refuse("expected CRLF after an argument")
	}
	return arg.Bytes(), nil
}

// refuse answers a client with a protocol error.
func (c *soundConn) refuse(reason string) error {
	_, _ = c.Write([]byte("-ERR Protocol error: " + reason + "\r\n"))
	return errors.Join(io.EOF, fmt.Errorf("protocol error: %s", reason))
}
