package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/test/redistest"
)

func newEmbedded(t *testing.T) (*embedded, redis.UniversalClient) {
	t.Helper()
	e, err := startEmbedded("127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.close)
	rdb, err := cli.OpenRedis(t.Context(), e.url())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	return e, rdb
}

// TestEmbeddedExpires holds that "its keys expire by the clock": a key may live
// up to a tick longer than it was told, and never shorter, however its time to
// live was set.
func TestEmbeddedExpires(t *testing.T) {
	t.Parallel()
	const ttl = 250 * time.Millisecond
	script := redis.NewScript(`redis.call('SET', KEYS[1], 'v') redis.call('PEXPIRE', KEYS[1], ARGV[1])`)
	for name, set := range map[string]func(ctx context.Context, rdb redis.UniversalClient) error{
		"set px": func(ctx context.Context, rdb redis.UniversalClient) error { return rdb.Set(ctx, "k", "v", ttl).Err() },
		"pexpire": func(ctx context.Context, rdb redis.UniversalClient) error {
			return rdb.PExpire(ctx, "k", ttl).Err()
		},
		"script": func(ctx context.Context, rdb redis.UniversalClient) error {
			return ignoreNil(script.Run(ctx, rdb, []string{"k"}, ttl.Milliseconds()).Err())
		},
		"pexpireat": func(ctx context.Context, rdb redis.UniversalClient) error {
			return rdb.PExpireAt(ctx, "k", time.Now().Add(ttl)).Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, rdb := newEmbedded(t)
			ctx := t.Context()
			if err := rdb.Set(ctx, "k", "v", 0).Err(); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if err := set(ctx, rdb); err != nil {
				t.Fatal(err)
			}
			redistest.WaitFor(t, "the key to expire", bound, func() bool {
				return rdb.Exists(ctx, "k").Val() == 0
			})
			// PEXPIREAT is a moment in whole milliseconds, rounded down.
			if lived := time.Since(start); lived < ttl-time.Millisecond {
				t.Errorf("lived %s, was told %s", lived, ttl)
			}
		})
	}
}

func ignoreNil(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// TestEmbeddedExpiresUntouched holds that nobody has to ask for a key for it to
// go: memory is given back.
func TestEmbeddedExpiresUntouched(t *testing.T) {
	t.Parallel()
	e, rdb := newEmbedded(t)
	for i := range 100 {
		if err := rdb.Set(t.Context(), fmt.Sprint(i), "v", 20*time.Millisecond).Err(); err != nil {
			t.Fatal(err)
		}
	}
	redistest.WaitFor(t, "the keys to go", bound, func() bool { return len(e.mini.Keys()) == 0 })
}

// TestEmbeddedClock holds that TIME is the wall clock.
func TestEmbeddedClock(t *testing.T) {
	t.Parallel()
	_, rdb := newEmbedded(t)
	before := time.Now().Truncate(time.Microsecond)
	now, err := rdb.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	if now.Before(before) || now.After(time.Now()) {
		t.Errorf("TIME is %s, not between %s and now", now, before)
	}
}

func TestAddToTTL(t *testing.T) {
	t.Parallel()
	const d = 12*time.Millisecond + time.Microsecond
	for command, want := range map[string]string{
		"PEXPIRE k 100":                  "k 113",
		"PEXPIRE k 100 NX":               "k 113 NX",
		"PSETEX k 100 v":                 "k 113 v",
		"PEXPIREAT k 100":                "k 113",
		"EXPIRE k 100":                   "k 101",
		"SETEX k 100 v":                  "k 101 v",
		"EXPIREAT k 100":                 "k 101",
		"SET k v":                        "k v",
		"SET k 5 PX 100":                 "k 5 PX 113",
		"SET k v NX px 100":              "k v NX px 113",
		"SET k v NX EX 2":                "k v NX PX 2013",
		"SET PX EX PX 1":                 "PX EX PX 14",
		"SET k PX":                       "k PX",
		"SET k v EX x":                   "k v EX x",
		"SET k v EX 0":                   "k v EX 0",
		"SET k v EX 9223372036854775807": "k v EX 9223372036854775807",
		"PEXPIRE k 0":                    "k 0",
		"PEXPIRE k -1":                   "k -1",
		"PEXPIRE k x":                    "k x",
		"PEXPIRE":                        "",
		"GET 100 100":                    "100 100",
		"ZADD k 100 100":                 "k 100 100",
	} {
		words := strings.Fields(command)
		addToTTL(words[0], words[1:], d)
		if got := strings.Join(words[1:], " "); got != want {
			t.Errorf("%s: got %q, want %q", command, got, want)
		}
	}
}

// TestEmbeddedPortInUse holds that it "refuses a port in use with a clear
// message".
func TestEmbeddedPortInUse(t *testing.T) {
	t.Parallel()
	e, _ := newEmbedded(t)
	addr := e.addr()
	_, err := startEmbedded(addr, slog.New(slog.DiscardHandler))
	var told *cli.Error
	if !errors.As(err, &told) {
		t.Fatalf("got %v", err)
	}
	if want := "the embedded Redis cannot listen on " + addr + ": the port is in use"; told.What != want {
		t.Errorf("got %q, want %q", told.What, want)
	}
	if want := "-redis redis://" + addr; !strings.Contains(told.Try, want) {
		t.Errorf("try %q lacks %q", told.Try, want)
	}
}

func TestListenError(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"192.0.2.1:0":            "does not have the address 192.0.2.1",
		"no-such-host.invalid:0": "no address is known for no-such-host.invalid",
		"127.0.0.1:99999":        "invalid port",
	} {
		_, err := net.Listen("tcp", addr)
		if err == nil {
			t.Errorf("%s: no error", addr)
			continue
		}
		if got := listenError(err, addr, "it", "").Error(); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", addr, got, want)
		}
	}
}

// TestEmbeddedLoopback holds that no other machine reaches the server, which
// has no password.
func TestEmbeddedLoopback(t *testing.T) {
	t.Parallel()
	host, _, err := net.SplitHostPort(cli.EmbeddedAddr)
	if err != nil || !net.ParseIP(host).IsLoopback() {
		t.Errorf("%s is not on the loopback", cli.EmbeddedAddr)
	}
}

// TestEmbeddedCloses holds that close does not wait for clients.
func TestEmbeddedCloses(t *testing.T) {
	t.Parallel()
	e, err := startEmbedded("127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", e.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte("*1\r\n$4\r\nPING\r\n")); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "+PONG\r\n" {
		t.Fatal(line, err)
	}
	e.close()
}

// BenchmarkEmbedded shows that a command costs the same whatever the number of
// keys beside it.
func BenchmarkEmbedded(b *testing.B) {
	for _, keys := range []int{0, 1000, 20000} {
		b.Run(fmt.Sprint(keys), func(b *testing.B) {
			e, err := startEmbedded("127.0.0.1:0", slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			defer e.close()
			rdb := redis.NewClient(&redis.Options{Addr: e.addr()})
			defer func() { _ = rdb.Close() }()
			for i := range keys {
				if err := e.mini.Set(fmt.Sprint(i), "v"); err != nil {
					b.Fatal(err)
				}
				e.mini.SetTTL(fmt.Sprint(i), time.Hour)
			}
			times := make([]time.Duration, 0, b.N)
			for b.Loop() {
				start := time.Now()
				if err := rdb.Set(b.Context(), "k", "v", time.Minute).Err(); err != nil {
					b.Fatal(err)
				}
				times = append(times, time.Since(start))
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
		})
	}
}
