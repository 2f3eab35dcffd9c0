package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

func newEmbedded(t *testing.T) (*embedded, redis.UniversalClient) {
	t.Helper()
	e, err := startEmbedded("127.0.0.1:0", slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(e.close)
	return e, open(t, e.url())
}

// A key lives as long as its time to live, however that was set, and up to a tick longer.
func TestEmbeddedExpires(t *testing.T) {
	t.Parallel()
	const ttl = 250 * time.Millisecond
	_, rdb := newEmbedded(t)
	ctx, start := t.Context(), time.Now()
	must(t, rdb.Set(ctx, "set px", "v", ttl).Err())
	script := redis.NewScript(`redis.call('SET', KEYS[1], 'v') return redis.call('PEXPIRE', KEYS[1], ARGV[1])`)
	must(t, script.Run(ctx, rdb, []string{"script"}, ttl.Milliseconds()).Err())
	must(t, rdb.Set(ctx, "pexpireat", "v", 0).Err())
	must(t, rdb.PExpireAt(ctx, "pexpireat", time.Now().Add(ttl)).Err())
	for _, key := range []string{"set px", "script", "pexpireat"} {
		redistest.WaitFor(t, key+" to expire", bound, func() bool { return rdb.Exists(ctx, key).Val() == 0 })
		// PEXPIREAT is a moment in whole milliseconds, rounded down.
		if lived := time.Since(start); lived < ttl-time.Millisecond {
			t.Errorf("%s lived %s, was told %s", key, lived, ttl)
		}
	}
}

// sends sends bytes to an embedded server in pieces, and returns what it answers until it closes the
// connection, or until the client does after its last byte.
func (e *embedded) sends(t testing.TB, size int, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", e.addr())
	must(t, err)
	defer func() { _ = c.Close() }()
	must(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	for rest := text; rest != ""; rest = rest[min(size, len(rest)):] {
		if _, err := io.WriteString(c, rest[:min(size, len(rest))]); err != nil {
			break // it has closed the connection
		}
	}
	_ = c.(*net.TCPConn).CloseWrite()
	answer, _ := io.ReadAll(c)
	return string(answer)
}

const ping, pong = "*1\r\n$4\r\nPING\r\n", "+PONG\r\n"

// The embedded server survives any bytes: what is no command of Redis' protocol ends its connection, with an error, and no other.
func TestEmbeddedSurvives(t *testing.T) {
	t.Parallel()
	e, rdb := newEmbedded(t)
	for text, want := range map[string]string{
		ping:                                   pong,
		ping + ping:                            pong + pong,
		"*0\r\n" + ping:                        pong,
		"*-1\r\n" + ping:                       pong,
		"*-9223372036854775808\r\n" + ping:     pong,
		"*1\r\n$0\r\n\r\n" + ping:              "-ERR unknown command ``, with args beginning with: \r\n" + pong,
		"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n":       "$0\r\n\r\n",
		"*2\r\n$4\r\nPING\r\n$3\r\na\r\n\r":    "",
		"*2\r\n$4\r\nPING\r\n$3\r\n\r\n\r\r\n": "$3\r\n\r\n\r\r\n",
		"":                                     "",
		"*1\r\n":                               "",
		"PING\r\n":                             "-ERR Protocol error: expected '*'\r\n",
		"\r\n":                                 "-ERR Protocol error: expected '*'\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n":    "-ERR Protocol error: expected '*'\r\n",
		"\x16\x03\x01":                         "-ERR Protocol error: expected '*'\r\n",
		"*1\r\n:5\r\n":                         "-ERR Protocol error: expected '$'\r\n",
		"*1\r\n*1\r\n":                         "-ERR Protocol error: expected '$'\r\n",
		"*x\r\n":                               "-ERR Protocol error: invalid length\r\n",
		"*1\n$4\r\nPING\r\n":                   "-ERR Protocol error: invalid length\r\n",
		"*" + strings.Repeat("1", 9999):        "-ERR Protocol error: invalid length\r\n",
		"*1048577\r\n":                         "-ERR Protocol error: invalid multibulk length\r\n",
		"*9223372036854775807\r\n":             "-ERR Protocol error: invalid multibulk length\r\n",
		"*1\r\n$-1\r\n":                        "-ERR Protocol error: invalid bulk length\r\n",
		"*1\r\n$9223372036854775807\r\n":       "-ERR Protocol error: invalid bulk length\r\n",
		"*1\r\n$67108865\r\n":                  "-ERR Protocol error: invalid bulk length\r\n",
		"*1\r\n$4\r\nPINGPONG\r\n":             "-ERR Protocol error: expected CRLF after an argument\r\n",
		ping + "x":                             "-ERR Protocol error: expected '*'\r\n", // before the answer to the first, or behind it
	} {
		for _, size := range []int{1, 3, len(text) + 1} {
			if got := e.sends(t, size, text); got != want && got != pong+want && got != want+pong {
				t.Errorf("%.40q in pieces of %d: %q, want %q", text, size, got, want)
			}
		}
	}
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Errorf("the server is gone: %v", err)
	}
}

// A fault of miniredis at a command is that command's error, in a script and in a transaction too, and is logged without its arguments.
func TestEmbeddedRecovers(t *testing.T) {
	t.Parallel()
	e, rdb := newEmbedded(t)
	var logged bytes.Buffer
	e.log = slog.New(slog.NewTextHandler(&logged, nil))
	must(t, e.mini.Server().Register("FAULT", func(*server.Peer, string, []string) { panic("oh") }))
	if err := rdb.Do(t.Context(), "FAULT", "secret").Err(); err == nil || err.Error() != "ERR the embedded Redis failed at this command" {
		t.Errorf("%v", err)
	}
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Errorf("the server is gone: %v", err)
	}
	if text := logged.String(); !strings.Contains(text, "command=FAULT args=1 panic=oh") || strings.Contains(text, "secret") {
		t.Errorf("%s", text)
	}
}

// FuzzEmbedded sends bytes to an embedded server, as they are and as the arguments of a command, and
// asks another connection whether it still serves.
func FuzzEmbedded(f *testing.F) {
	f.Add([]byte("*0\r\n"), "SET k v")
	f.Add([]byte("*1\r\n$-1\r\n"), "EVAL return 0")
	f.Add([]byte("*2\r\n$4\r\nPING\r\n$99999999999999999999\r\n"), "ZADD k 1")
	e, err := startEmbedded("127.0.0.1:0", slog.New(slog.DiscardHandler))
	must(f, err)
	f.Cleanup(e.close)
	rdb := redis.NewClient(&redis.Options{Addr: e.addr()})
	f.Cleanup(func() { _ = rdb.Close() })
	f.Fuzz(func(t *testing.T, raw []byte, words string) {
		e.sends(t, len(raw)+1, string(raw))
		if fields := strings.Fields(words); len(fields) > 0 && !endless(fields) {
			var command strings.Builder
			fmt.Fprintf(&command, "*%d\r\n", len(fields))
			for _, word := range fields {
				fmt.Fprintf(&command, "$%d\r\n%s\r\n", len(word), word)
			}
			e.sends(t, command.Len(), command.String())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := rdb.Ping(ctx).Err(); err != nil {
			t.Fatalf("the server is gone: %v", err)
		}
	})
}

// endless reports whether a command may rightly take for ever, or ends the server.
func endless(words []string) bool {
	switch strings.ToUpper(words[0]) {
	case "EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "SHUTDOWN", "SETRANGE", "SETBIT":
		return true
	}
	return false
}
