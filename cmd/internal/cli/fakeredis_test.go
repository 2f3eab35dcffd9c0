package cli

import (
	"bufio"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
)

// fakeRedis is a server that answers each command as reply says, in the wire
// format. It stands for servers that are hard to come by: old, loading, or
// not Redis at all.
func fakeRedis(t *testing.T, reply func(command []string) string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
			go serveFake(c, reply)
		}
	}()
	return l.Addr().String()
}

func serveFake(c net.Conn, reply func([]string) string) {
	r := bufio.NewReader(c)
	for {
		command, err := readCommand(r)
		if err != nil {
			return
		}
		answer := reply(command)
		if answer == "" { // hang up
			_ = c.Close()
			return
		}
		if answer == "wait" {
			continue
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return
		}
	}
}

func readCommand(r *bufio.Reader) ([]string, error) {
	n, err := readCount(r)
	if err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		size, err := readCount(r)
		if err != nil {
			return nil, err
		}
		buf := make([]byte, size+2)
		if _, err := io.ReadFull(r, buf); err != nil {
			return nil, err
		}
		words[i] = string(buf[:size])
	}
	return words, nil
}

func readCount(r *bufio.Reader) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

// answers replies to a command by its first word; others get an error, as
// HELLO does from a server that has never heard of it.
func answers(m map[string]string) func([]string) string {
	return func(command []string) string {
		if a, ok := m[strings.ToUpper(command[0])]; ok {
			return a
		}
		return "-ERR unknown command\r\n"
	}
}

func bulk(s string) string { return "$" + strconv.Itoa(len(s)) + "\r\n" + s + "\r\n" }
