package cli

import (
	"strconv"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2/server"
)

// fakeRedis is a server that answers each command as reply says, in the wire
// format. It stands for servers that are hard to come by: old, loading, or
// not Redis at all.
func fakeRedis(t *testing.T, reply func(command []string) string) string {
	t.Helper()
	s, err := server.NewServer("127.0.0.1:0")
	must(t, err)
	t.Cleanup(s.Close)
	s.SetPreHook(func(c *server.Peer, name string, args ...string) bool {
		switch answer := reply(append([]string{name}, args...)); answer {
		case "": // hang up
			c.Close()
		case "wait":
		default:
			c.WriteRaw(answer)
			c.Flush()
		}
		return true
	})
	return s.Addr().String()
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
