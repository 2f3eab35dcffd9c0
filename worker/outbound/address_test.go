package outbound

import (
	"net/netip"
	"strings"
	"testing"
)

func TestRefusal(t *testing.T) {
	t.Parallel()
	cases := map[string]string{
		"an unspecified":               "0.0.0.0 0.255.255.255 :: ::ffff:0.0.0.0",
		"a loopback":                   "127.0.0.1 127.255.255.255 ::1 ::ffff:127.0.0.1 64:ff9b::127.0.0.1 2002:7f00:1::1",
		"a private":                    "10.0.0.0 10.255.255.255 172.16.0.0 172.31.255.255 192.168.0.0 192.168.255.255 fc00::1 fdff::1 fec0::1 ::ffff:10.0.0.1 64:ff9b::10.0.0.1 2002:a00:1::",
		"a shared (carrier-grade NAT)": "100.64.0.0 100.127.255.255 64:ff9b::100.100.100.200",
		"a link-local":                 "169.254.0.0 169.254.169.254 fe80::1 fe80::1%eth0 febf::1 64:ff9b::a9fe:a9fe",
		"a multicast":                  "224.0.0.1 239.255.255.255 ff02::1 ffff::",
		"a cloud platform's":           "168.63.129.16",
		"a benchmarking":               "198.18.0.0 198.19.255.255 2001:2::1",
		"a documentation":              "192.0.2.1 198.51.100.1 203.0.113.255 2001:db8::1 3fff::1 3fff:fff::1",
		"a reserved": "192.0.0.1 192.88.99.1 240.0.0.0 255.255.255.255 2001:1::1 2001:10::1 2001:20::1 2001:1ff::1 " +
			"::127.0.0.1 ::2 100::1 64:ff9b:1::1 64:ff9b:0:1::1 5f00::1 ::ffff:0:127.0.0.1 1fff::1 4000::1 fbff::1",
		"": "1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 168.63.129.15 169.253.255.255 " +
			"172.15.255.255 172.32.0.0 192.0.1.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 223.255.255.255 " +
			"2606:4700::1111 2001:200::1 2001:4860:4860::8888 2a00::1 3ffe::1 " +
			"::ffff:1.1.1.1 64:ff9b::1.1.1.1 2002:101:101::1",
	}
	for want, addrs := range cases {
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

// A Teredo address holds its server, and its client with every bit turned over.
func TestRefusalOfTeredo(t *testing.T) {
	t.Parallel()
	build := func(server, client string) netip.Addr {
		b := [16]byte{0x20, 0x01}
		s, c := netip.MustParseAddr(server).As4(), netip.MustParseAddr(client).As4()
		copy(b[4:], s[:])
		for i := range c {
			b[12+i] = ^c[i]
		}
		return netip.AddrFrom16(b)
	}
	for _, tc := range []struct{ server, client, want string }{
		{"1.1.1.1", "9.9.9.9", ""},
		{"1.1.1.1", "10.0.0.1", "a private"},
		{"127.0.0.1", "9.9.9.9", "a loopback"},
		{"1.1.1.1", "169.254.169.254", "a link-local"},
	} {
		if got := refusal(build(tc.server, tc.client)); got != tc.want {
			t.Errorf("server %s, client %s: %q, want %q", tc.server, tc.client, got, tc.want)
		}
	}
}
