package redisopen

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/test/redistest"
)

func TestParseRedisURL(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]struct {
		name, addr, user, password string
		db                         int
		tls                        bool
	}{
		"redis://":                               {"localhost:6379", "localhost:6379", "", "", 0, false},
		"redis://h:1/2":                          {"h:1", "h:1", "", "", 2, false},
		"REDIS://u:p%40w@h:1?db=4":               {"h:1", "h:1", "u", "p@w", 4, false},
		"redis://:p@w@h":                         {"h:6379", "h:6379", "", "p@w", 0, false},
		"redis://u:a:b@h":                        {"h:6379", "h:6379", "u", "a:b", 0, false},
		"redis://[::1]:7":                        {"[::1]:7", "[::1]:7", "", "", 0, false},
		"redis://[::1]":                          {"[::1]:6379", "[::1]:6379", "", "", 0, false},
		"rediss://h:1":                           {"h:1", "h:1", "", "", 0, true},
		"unix:///tmp/r.sock?db=3":                {"/tmp/r.sock", "/tmp/r.sock", "", "", 3, false},
		"redis-socket://u:p@/tmp/r.sock":         {"/tmp/r.sock", "/tmp/r.sock", "u", "p", 0, false},
		" redis://h:1/0\n":                       {"h:1", "h:1", "", "", 0, false},
		"redis://h:1/0?client_name=x&protocol=2": {"h:1", "h:1", "", "", 0, false},
	} {
		got, err := parseRedisURL(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		o := got.single
		if got.name != want.name || o.Addr != want.addr || o.Username != want.user || o.Password != want.password ||
			o.DB != want.db || (o.TLSConfig != nil) != want.tls || !o.ContextTimeoutEnabled {
			t.Errorf("%s: %q %q %q %q %d %v", raw, got.name, o.Addr, o.Username, o.Password, o.DB, o.TLSConfig != nil)
		}
	}
}

func TestParseSentinelURL(t *testing.T) {
	t.Parallel()
	got, err := parseRedisURL("redis-sentinel://su:sp@a:1,b,[::1]:3/5?master=main&username=u&password=p&addr=d:4&read_timeout=3s")
	must(t, err)
	o := got.sentinel
	if want := []string{"a:1", "b:26379", "[::1]:3", "d:4"}; !sameSet(o.SentinelAddrs, want) {
		t.Errorf("addresses %q, want %q", o.SentinelAddrs, want)
	}
	if o.MasterName != "main" || o.DB != 5 || o.SentinelUsername != "su" || o.SentinelPassword != "sp" ||
		o.Username != "u" || o.Password != "p" || o.ReadTimeout != 3*time.Second || !o.ContextTimeoutEnabled {
		t.Errorf("options %+v", o)
	}
}

func TestParseClusterURL(t *testing.T) {
	t.Parallel()
	got, err := parseRedisURL("rediss+cluster://u:p@a:1,b/0?addr=c:3&max_redirects=9")
	must(t, err)
	o := got.cluster
	if want := []string{"a:1", "b:6379", "c:3"}; !sameSet(o.Addrs, want) {
		t.Errorf("addresses %q, want %q", o.Addrs, want)
	}
	if o.Username != "u" || o.Password != "p" || o.MaxRedirects != 9 || o.TLSConfig == nil || !o.ContextTimeoutEnabled {
		t.Errorf("options %+v", o)
	}
	// "The programs look every two seconds who owns which slots."
	if o.ClusterStateReloadInterval != 2*time.Second {
		t.Errorf("the map of slots may be %v old", o.ClusterStateReloadInterval)
	}
}

func sameSet(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// TestParseRedisURLFaults holds that a bad URL is refused with what is wrong and what to write, and that no error quotes what may
// be a password. Each URL has the word "geheim" where a password could stand.
func TestParseRedisURLFaults(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"":                                              "has no scheme",
		"localhost:6379":                                "has no scheme",
		"geheim@localhost:6379":                         "has no scheme",
		"u:geheim@localhost://x":                        "has no scheme",
		"http://localhost":                              `unknown scheme "http"`,
		"redis://u:geheim/x@h":                          "cannot be read",
		"redis://u:geheim?x@h":                          "cannot be read",
		"redis://u:gehe#im@h":                           "cannot be read",
		"redis://u:geheim%zz@h":                         "cannot be decoded",
		"redis://u:geheim@h o":                          "cannot be read",
		"redis://:geheim":                               "a port that is not a number",
		"redis://u:geheim":                              "a port that is not a number",
		"redis://h:70000":                               "a port that is not a number",
		"redis://::1":                                   "not HOST:PORT",
		"redis://a:1:geheim":                            "not HOST:PORT",
		"redis://a:1,b:2":                               "names one server, this one names 2",
		"redis://u:geheim@h/abc":                        `invalid database number: "abc"`,
		"redis://u:geheim@h/-1":                         "below 0",
		"redis://u:geheim@h/1/2":                        "invalid URL path",
		"redis://u:geheim@h?x=1":                        "unexpected option: x",
		"redis://u:geheim@h?dial_timeout=abc":           "invalid dial_timeout",
		"redis://u:geheim@h?pool_size=abc":              "invalid pool_size",
		"unix://tmp/r.sock":                             "three slashes",
		"unix://":                                       "three slashes",
		"redis-sentinel://u:geheim@h":                   "names no master",
		"redis-sentinel://h?master=m&replica_only=true": "asks for replicas",
		"redis-sentinel://h?master=%zz":                 "cannot be decoded",
		"redis+cluster://u:geheim@h/3":                  "database 0 only",
		"redis+cluster://u:geheim@h?read_only=1":        "asks for replicas",
		"redis+cluster://u:geheim@h?addr=x":             "unable to parse addr param: x",
	} {
		_, err := parseRedisURL(raw)
		if err == nil {
			t.Fatalf("%s: no error", raw)
		}
		fault, is := err.(*diag.Error) //nolint:errorlint // never wrapped
		if !is || !strings.Contains(fault.What, want) || fault.Try == "" {
			t.Errorf("%s: got %v, want %q and a try", raw, err, want)
		}
		if text := err.Error() + Name(raw); strings.Contains(text, "gehe") {
			t.Errorf("%s: the password is in %s", raw, text)
		}
	}
}

// TestClientOutOfRange holds that what go-redis would panic about is an error.
func TestClientOutOfRange(t *testing.T) {
	t.Parallel()
	target, err := parseRedisURL("redis://h?pool_size=99999999999")
	must(t, err)
	if _, err := target.client(0); err == nil || !strings.Contains(err.Error(), "out of range") {
		t.Errorf("got %v", err)
	}
}

// TestPoolSize holds that each task may have a connection, unless the URL has a pool_size.
func TestPoolSize(t *testing.T) {
	t.Parallel()
	size := func(url string) int {
		target, err := parseRedisURL(url)
		must(t, err)
		_, err = target.client(400)
		must(t, err)
		switch {
		case target.single != nil:
			return target.single.PoolSize
		case target.sentinel != nil:
			return target.sentinel.PoolSize
		}
		return target.cluster.PoolSize
	}
	for _, url := range []string{"redis://h", "redis-sentinel://h?master=m", "redis+cluster://h"} {
		if got := size(url); got != 400 {
			t.Errorf("%s: %d connections", url, got)
		}
		sign := "?"
		if strings.Contains(url, sign) {
			sign = "&"
		}
		if got := size(url + sign + "pool_size=7"); got != 7 {
			t.Errorf("%s with a pool_size: %d connections", url, got)
		}
	}
	rdb, err := OpenFor(t.Context(), "redis://"+redistest.Addr(), 200)
	must(t, err)
	defer func() { _ = rdb.Close() }()
	if got := rdb.(*redis.Client).Options().PoolSize; got != 216 { //nolint:forcetypeassert // of one server
		t.Errorf("for 200 tasks: %d connections", got)
	}
}
