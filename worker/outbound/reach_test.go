package outbound

import (
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
)

// everywhere lets loopback addresses stand for public ones.
func everywhere(netip.Addr) string { return "" }

// blockedBy wants a refusal by a rule, for good.
func blockedBy(tb testing.TB, err error, rule, text string) {
	tb.Helper()
	var blocked *BlockedError
	if !errors.As(err, &blocked) || blocked.Rule != rule || err.Error() != text {
		tb.Errorf("got %v\nwant %s", err, text)
		return
	}
	wantPermanent(tb, err, true)
}

// Addresses of the machine's own interfaces are refused, whatever name leads to them, unless the host is allowed.
func TestOwnAddressesAreRefused(t *testing.T) {
	t.Parallel()
	s := listen(t, always(ok))
	for _, tc := range []struct{ own, host, resolves string }{
		{"127.0.0.1", "127.0.0.1", ""},
		{"127.0.0.1", "own.test", "127.0.0.1"},
		{"127.0.0.1", "own.test", "::ffff:127.0.0.1"},
		{"198.51.100.7", "own.test", "64:ff9b::198.51.100.7"},
		{"198.51.100.7", "own.test", "2002:c633:6407::1"},
		{"2001:db8::7", "own.test", "2001:db8::7"},
		{"2001:db8::7", "[2001:db8:0::7]", ""},
		{"fe80::7", "own.test", "fe80::7"},
	} {
		h := handler(t, Config{AllowHosts: []string{"other.test"}}, seams{resolver: resolves(strings.Fields(tc.resolves)...), refuse: everywhere, own: owns("192.0.2.1", tc.own)})
		err := run(t, h, payload{URL: "http://" + tc.host + ":" + s.port})
		wantBlocked(t, err, tc.host)
		wantPermanent(t, err, true, "this machine's own address")
	}
	h := handler(t, Config{AllowHosts: []string{"own.test:" + s.port}}, seams{resolver: resolves("127.0.0.1"), refuse: everywhere, own: owns("127.0.0.1")})
	must(t, run(t, h, payload{URL: "http://own.test:" + s.port}))
	// The system's list has what it listens on.
	h = handler(t, Config{AllowHosts: []string{"other.test"}}, seams{refuse: everywhere})
	wantBlocked(t, run(t, h, payload{URL: s.url}), "127.0.0.1")
}

// If the machine's own addresses are unknown, nothing is dialled. An address that is new among them is refused with the next connection.
func TestOwnAddressesAreFresh(t *testing.T) {
	t.Parallel()
	s := listen(t, always(ok))
	own, fault := []netip.Addr{}, errors.New("no netlink")
	h := handler(t, Config{AllowHosts: []string{"other.test"}}, seams{refuse: everywhere, own: func() ([]netip.Addr, error) { return own, fault }})
	wantPermanent(t, run(t, h, payload{URL: s.url}), false, "does not list this machine's own addresses", "no netlink")
	if s.conns.Load() != 0 {
		t.Error("it was dialled")
	}
	fault = nil
	must(t, run(t, h, payload{URL: s.url}))
	h.Close()
	own = append(own, netip.MustParseAddr("127.0.0.1"))
	wantBlocked(t, run(t, h, payload{URL: s.url}), "127.0.0.1")
}

// "Hosts that alone may be dialled": of others the name is not even resolved.
func TestOnlyHosts(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	s := listen(t, always(ok))
	resolver := resolverFunc(func() []string { asked.Add(1); return []string{"127.0.0.1"} })
	for _, tc := range []struct {
		only, host string
		passes     bool
	}{
		{"api.test", "api.test", true},
		{"api.test:" + s.port, "api.test", true},
		{"other.test,api.test", "api.test", true},
		{"127.0.0.1", "127.0.0.1", true},
		{"api.test:1", "api.test", false},
		{"api.test", "x.api.test", false},
		{"api.test", "127.0.0.1", false},
		{"127.0.0.1", "api.test", false}, // by name, not by address
	} {
		h := handler(t, Config{OnlyHosts: strings.Split(tc.only, ","), AllowHosts: []string{"127.0.0.1", "x.api.test"}}, seams{resolver: resolver, refuse: everywhere, own: owns()})
		before := asked.Load()
		err := run(t, h, payload{URL: "http://" + tc.host + ":" + s.port + "/x"})
		if tc.passes {
			must(t, err)
			continue
		}
		at := tc.host + ":" + s.port
		blockedBy(t, err, "-only-host", "outbound: "+at+" is not among the hosts that tasks may reach; if it is meant, start the worker with -only-host "+at)
		if asked.Load() != before {
			t.Errorf("only %s: the name %s was resolved", tc.only, tc.host)
		}
	}
	// "It allows no address that is refused otherwise."
	h := handler(t, Config{OnlyHosts: []string{"api.test"}, AllowHosts: []string{"other.test"}}, seams{resolver: resolver})
	wantBlocked(t, run(t, h, payload{URL: "http://api.test:" + s.port}), "api.test")
}

// "Ranges that are never dialled, whatever AllowHosts and OnlyHosts name", as addresses are when the socket connects, in IPv6 too.
func TestDenyCIDRs(t *testing.T) {
	t.Parallel()
	s := listen(t, always(ok))
	for _, tc := range []struct{ deny, resolves, address string }{
		{"127.0.0.0/8", "127.0.0.1", "127.0.0.1"},
		{"127.0.0.1/32", "::ffff:127.0.0.1", "127.0.0.1"},
		{"127.0.0.0/8", "64:ff9b::7f00:1", "64:ff9b::7f00:1"},
		{"127.0.0.0/8", "2002:7f00:1::", "2002:7f00:1::"},
		{"0.0.0.0/0", "127.0.0.1", "127.0.0.1"},
		{"::/0", "::1", "::1"},
		{"2001:db8::/32", "2001:db8::1", "2001:db8::1"},
	} {
		h := handler(t, Config{DenyCIDRs: []string{"192.0.2.0/24", tc.deny}, AllowHosts: []string{"api.test"}, OnlyHosts: []string{"api.test"}}, seams{resolver: resolves(tc.resolves)})
		err := run(t, h, payload{URL: "http://api.test:" + s.port})
		blockedBy(t, err, "-deny-cidr "+tc.deny, "outbound: api.test is "+tc.address+", in a range that tasks may not reach, whatever -allow-host says: -deny-cidr "+tc.deny)
	}
	// Of a name with several addresses the others are used.
	h := handler(t, Config{DenyCIDRs: []string{"127.0.0.2/31", "::/0"}, AllowHosts: []string{"api.test"}}, seams{resolver: resolves("127.0.0.2", "::1", "127.0.0.1")})
	must(t, run(t, h, payload{URL: "http://api.test:" + s.port}))
}

// "Ports that alone are dialled, whatever AllowHosts and OnlyHosts name", the schemes' too.
func TestPorts(t *testing.T) {
	t.Parallel()
	s := listen(t, always(ok))
	port := int(netip.MustParseAddrPort(s.addr).Port())
	h := handler(t, Config{Ports: []int{8443, port}}, seams{resolver: resolves("127.0.0.1")})
	must(t, run(t, h, payload{URL: s.url}))
	h = handler(t, Config{Ports: []int{8443}, AllowHosts: []string{"127.0.0.1:" + s.port}, OnlyHosts: []string{"127.0.0.1"}}, seams{})
	for url, port := range map[string]string{s.url: s.port, "http://127.0.0.1/": "80", "https://127.0.0.1/": "443"} {
		blockedBy(t, run(t, h, payload{URL: url}), "-ports", "outbound: tasks may not reach port "+port+" of 127.0.0.1; if it is meant, add it to -ports of the worker")
	}
	if s.requests.Load() != 1 || s.conns.Load() != 1 {
		t.Errorf("%d requests, %d connections", s.requests.Load(), s.conns.Load())
	}
}

func TestReachFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"10.0.0.0/8": "", "0.0.0.0/0": "", "2001:db8::/32": "", "::1/128": "", "1.2.3.4/32": "",
		"10.1.2.3/8": "write 10.0.0.0/8", "10.1.2.3": "write 10.1.2.3/32", "::1": "write ::1/128",
		"::ffff:10.0.0.0/104": "write it in IPv4", "10.0.0.0/33": "not a range", "10.0.0/8": "not a range", "": "not a range", "api.test": "not a range",
		"fe80::1%eth0": "not a range", "10.0.0.0/8 ": "not a range", "http://10.0.0.0/8": "not a range",
	} {
		_, err := parseCIDR(text)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
