package outbound

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// owns is a machine that has these addresses.
func owns(addrs ...string) func() ([]netip.Addr, error) {
	return func() (own []netip.Addr, _ error) {
		for _, a := range addrs {
			own = append(own, netip.MustParseAddr(a))
		}
		return own, nil
	}
}

// resolves is a resolver that gives these addresses for every name.
func resolves(addrs ...string) *net.Resolver {
	return resolverFunc(func() []string { return addrs })
}

// resolverFunc is a resolver that asks f for the addresses at each question. It speaks DNS over a pipe: no packet leaves the process.
func resolverFunc(f func() []string) *net.Resolver {
	return &net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			defer func() { _ = server.Close() }()
			for {
				var size [2]byte
				if _, err := io.ReadFull(server, size[:]); err != nil {
					return
				}
				question := make([]byte, binary.BigEndian.Uint16(size[:]))
				if _, err := io.ReadFull(server, question); err != nil {
					return
				}
				answer := dnsAnswer(question, f())
				if _, err := server.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
					return
				}
			}
		}()
		return client, nil
	}}
}

// dnsAnswer gives those of addrs that are of the question's type.
func dnsAnswer(question []byte, addrs []string) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil {
		return nil
	}
	m.Response, m.Additionals = true, nil
	for _, text := range addrs {
		q, ip := m.Questions[0], netip.MustParseAddr(text)
		answer := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}}
		switch {
		case ip.Is4() && q.Type == dnsmessage.TypeA:
			answer.Body = &dnsmessage.AResource{A: ip.As4()}
		case ip.Is6() && q.Type == dnsmessage.TypeAAAA:
			answer.Body = &dnsmessage.AAAAResource{AAAA: ip.As16()}
		default:
			continue
		}
		m.Answers = append(m.Answers, answer)
	}
	packed, _ := m.Pack()
	return packed
}

// wantBlocked wants a refusal of host, which advises to allow it with its port alone.
func wantBlocked(tb testing.TB, err error, host string) {
	tb.Helper()
	var blocked *BlockedError
	if !errors.As(err, &blocked) {
		tb.Errorf("err = %v, want a BlockedError", err)
		return
	}
	wantPermanent(tb, err, true)
	if want := fmt.Sprintf("-allow-host %s:%d", host, blocked.Port); blocked.Host != host || blocked.Port == 0 || !strings.HasSuffix(err.Error(), want) {
		tb.Errorf("host %q, want %q: %v", blocked.Host, host, err)
	}
	// What it advises works as it is written.
	_, advice, _ := strings.Cut(err.Error(), "-allow-host ")
	_, parseErr := parseHost(advice)
	must(tb, parseErr)
}

// onlyOne lets 127.0.0.1 alone stand for a public address.
func onlyOne(a netip.Addr) string {
	if a == netip.MustParseAddr("127.0.0.1") {
		return ""
	}
	return "a private"
}

// Whatever a host looks like, the address that is dialled counts.
func TestAddressesThatAreRefused(t *testing.T) {
	t.Parallel()
	for host, addr := range map[string]string{
		"127.0.0.1": "", "[::1]": "", "0.0.0.0": "", "10.1.2.3": "", "169.254.169.254": "", "[::ffff:192.168.0.1]": "", "[fe80::1%lo]": "",
		"localhost": "127.0.0.1", "LOCALHOST.": "::1", "innocent.test": "10.0.0.1", "INNOCENT.test": "100.64.0.1", "127.0.0.1.nip.test": "fc00::1",
		"a.b_c.test": "fe80::1", "b.test": "::ffff:7f00:1", "c.test": "64:ff9b::7f00:1", "d.test": "2002:7f00:1::",
	} {
		h := handler(t, Config{AllowHosts: []string{"other.test"}}, seams{resolver: resolves(strings.Fields(addr)...)})
		for _, url := range []string{"http://%s", "https://%s:8080/x?y=z", "http://user:pw@%s?k=hush#hush"} {
			wantBlocked(t, run(t, h, payload{URL: fmt.Sprintf(url, strings.Replace(host, "%", "%25", 1))}), host)
		}
	}
}

// "Hosts first go through IDNA, and numbers that only some systems read as addresses are refused."
func TestHostsGoThroughIDNA(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 100)
	h := handler(t, Config{AllowHosts: []string{"other.test"}}, seams{resolver: resolverFunc(func() []string {
		asked <- struct{}{}
		return []string{"127.0.0.1"}
	})})
	for _, host := range []string{"2130706433", "0x7f000001", "0X7F.1", "0x", "0177.0.0.1", "127.1", "127.1.", "127.0.0.1.", "1.2.3.4.5", "256.1.1.1", "a.0x7f"} {
		var bad *PayloadError
		err := run(t, h, payload{URL: "http://" + host + "/x"})
		if wantPermanent(t, err, true); !errors.As(err, &bad) || bad.Field != "url" {
			t.Errorf("%s: %v", host, err)
		}
	}
	for _, host := range []string{"１２７.0.0.1", "①②⑦．0.0.1", "127。0。0。1", "%EF%BC%91%EF%BC%92%EF%BC%97.0.0.1"} {
		wantBlocked(t, run(t, h, payload{URL: "http://" + host + "/"}), "127.0.0.1")
	}
	if len(asked) > 0 {
		t.Error("the resolver was asked for an address")
	}
	wantBlocked(t, run(t, h, payload{URL: "http://ｉｎｎｏｃｅｎｔ.test/"}), "innocent.test")
	if len(asked) == 0 {
		t.Error("the resolver was not asked for a name")
	}
}

// If only some addresses of a name are refused, the others are dialled.
func TestMixedAnswersUseThePublicOne(t *testing.T) {
	t.Parallel()
	s := listen(t, always(ok))
	h := handler(t, Config{}, seams{resolver: resolves("127.0.0.2", "::1", "127.0.0.1"), refuse: onlyOne, own: owns()})
	must(t, run(t, h, payload{URL: "http://mixed.test:" + s.port}))
	// And where that one does not answer, the task is tried again later.
	_, port, _ := net.SplitHostPort(closedAddr(t))
	wantPermanent(t, run(t, h, payload{URL: "http://mixed.test:" + port}), false)
}

// A name that was judged once is judged again: its second answer cannot pass.
func TestRebindingIsRefused(t *testing.T) {
	t.Parallel()
	var questions atomic.Int64
	public := listen(t, func(p *peer) {
		p.request()
		p.say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	})
	private := listenOn(t, "127.0.0.2:"+public.port, nil, always(ok))
	rebound := false
	h := handler(t, Config{}, seams{
		resolver: resolverFunc(func() []string {
			questions.Add(1)
			if rebound {
				return []string{"127.0.0.2"}
			}
			return []string{"127.0.0.1"}
		}),
		refuse: onlyOne, own: owns(),
	})
	u := "http://rebind.test:" + public.port
	must(t, run(t, h, payload{URL: u}))
	asked := questions.Load()
	rebound = true
	wantBlocked(t, run(t, h, payload{URL: u}), "rebind.test")
	if questions.Load() == asked || private.conns.Load() != 0 {
		t.Errorf("%d questions, %d connections to the private address", questions.Load(), private.conns.Load())
	}
}

func TestAllowHosts(t *testing.T) {
	t.Parallel()
	s := listen(t, always(ok))
	for _, tc := range []struct {
		allow, host string
		passes      bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.0.1:" + s.port, "127.0.0.1", true},
		{"127.0.0.1:1", "127.0.0.1", false},
		{"api.test", "api.test", true},
		{"API.test.", "api.TEST", true},
		{"api.test:" + s.port, "api.test", true},
		{"api.test:1", "api.test", false},
		{"api.test", "x.api.test", false},
		{"127.0.0.1", "api.test", false}, // the name was not allowed, its address does not help
		{"api.test", "127.0.0.1", false},
		{"xn--bcher-kva.test", "bücher.test", true},
	} {
		h := handler(t, Config{AllowHosts: []string{tc.allow}}, seams{resolver: resolves("127.0.0.1")})
		err := run(t, h, payload{URL: "http://" + tc.host + ":" + s.port})
		if !tc.passes {
			wantBlocked(t, err, tc.host)
		} else if err != nil {
			t.Errorf("allow %s, host %s: %v", tc.allow, tc.host, err)
		}
	}
}

func TestDialFailuresAreRetried(t *testing.T) {
	t.Parallel()
	addr := closedAddr(t)
	h := handler(t, Config{}, seams{resolver: resolves()})
	err := run(t, h, payload{Method: "POST", URL: "http://" + addr + "/charge?k=hush"})
	wantPermanent(t, err, false)
	var op *net.OpError
	if !errors.As(err, &op) || err.Error() != "outbound: POST http://"+addr+"/charge: no answer: dial tcp "+addr+": connect: connection refused" {
		t.Error(err)
	}
	err = run(t, h, payload{URL: "http://nowhere.test/charge?k=hush"})
	wantPermanent(t, err, false, "GET http://nowhere.test/charge: no answer: dial tcp: lookup nowhere.test")
	if !errors.As(err, new(*net.DNSError)) {
		t.Error(err)
	}
}

func TestRefusal(t *testing.T) {
	t.Parallel()
	for want, addrs := range map[string]string{
		"an unspecified": "0.0.0.0 0.255.255.255 :: ::ffff:0.0.0.0",
		// A Teredo address, 2001:0:…, holds its server, and its client with every bit turned over.
		"a loopback":                   "2001:0:7f00:1::f6f6:f6f6 127.0.0.1 127.255.255.255 ::1 ::ffff:127.0.0.1 64:ff9b::127.0.0.1 2002:7f00:1::1",
		"a private":                    "2001:0:101:101::f5ff:fffe 10.0.0.0 10.255.255.255 172.16.0.0 172.31.255.255 192.168.0.0 192.168.255.255 fc00::1 fdff::1 fec0::1 ::ffff:10.0.0.1 64:ff9b::10.0.0.1 2002:a00:1::",
		"a shared (carrier-grade NAT)": "100.64.0.0 100.127.255.255 64:ff9b::100.100.100.200",
		"a link-local":                 "2001:0:101:101::5601:5601 169.254.0.0 169.254.169.254 fe80::1 fe80::1%eth0 febf::1 64:ff9b::a9fe:a9fe",
		"a multicast":                  "224.0.0.1 239.255.255.255 ff02::1 ffff::",
		"a cloud platform's":           "168.63.129.16",
		"a benchmarking":               "198.18.0.0 198.19.255.255 2001:2::1",
		"a documentation":              "192.0.2.1 198.51.100.1 203.0.113.255 2001:db8::1 3fff::1 3fff:fff::1",
		"a reserved": "192.0.0.1 192.88.99.1 240.0.0.0 255.255.255.255 2001:1::1 2001:10::1 2001:20::1 2001:1ff::1 " +
			"::127.0.0.1 ::2 100::1 64:ff9b:1::1 64:ff9b:0:1::1 5f00::1 ::ffff:0:127.0.0.1 1fff::1 4000::1 fbff::1",
		"": "1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 168.63.129.15 169.253.255.255 " +
			"172.15.255.255 172.32.0.0 192.0.1.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 223.255.255.255 " +
			"2001:0:101:101::f6f6:f6f6 2606:4700::1111 2001:200::1 2001:4860:4860::8888 2a00::1 3ffe::1 " +
			"::ffff:1.1.1.1 64:ff9b::1.1.1.1 2002:101:101::1",
	} {
		for text := range strings.FieldsSeq(addrs) {
			if got := refusal(netip.MustParseAddr(text)); got != want {
				t.Errorf("%s is %q, want %q", text, got, want)
			}
		}
	}
	if refusal(netip.Addr{}) == "" {
		t.Error("the invalid address is not refused")
	}
}

func TestParseHosts(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]hostPort{
		"Example.COM.":         {"example.com", 0},
		"example.com.:80":      {"example.com", 80},
		"10.0.0.1:8080":        {"10.0.0.1", 8080},
		"[::1]":                {"::1", 0},
		"[0:0:0::1]:443":       {"::1", 443},
		"[fe80::1%eth0]:65535": {"fe80::1%eth0", 65535},
		"my_host":              {"my_host", 0},
		"BÜCHER.test:80":       {"xn--bcher-kva.test", 80},
		"１０.0.0.1":             {"10.0.0.1", 0},
	} {
		if got, err := parseHost(entry); err != nil || got != want {
			t.Errorf("%s: %v, %v", entry, got, err)
		}
	}
	bad := []string{"", ":80", "host:", "host:0", "host:65536", "host:+80", "host:http", "::1", "::1:80", "[::1", "[::1]x", "[::1]80", "[::1]:", "[127.0.0.1]", "[host]",
		"http://host", "10.0.0.0/8", "*.host", "a b", "a..b", ".", "user@host", "bü_cher.test", "2130706433", "host\n", strings.Repeat("a.", 130)}
	_, err := parseHosts("only host", bad)
	if faults := strings.Count(fmt.Sprint(err), "outbound: only host "); faults != len(bad) {
		t.Errorf("%d faults for %d bad entries:\n%v", faults, len(bad), err)
	}
}
