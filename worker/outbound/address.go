package outbound

import (
	"net/netip"
	"slices"
)

// span is a range of addresses that are not an API on the internet, from the IANA special-purpose
// registries (RFC 6890 and its updates), and its name.
type span struct {
	prefix netip.Prefix
	kind   string
}

func spans(kind string, prefixes ...string) []span {
	s := make([]span, len(prefixes))
	for i, p := range prefixes {
		s[i] = span{netip.MustParsePrefix(p), kind}
	}
	return s
}

var refusedSpans = slices.Concat(
	spans("an unspecified", "0.0.0.0/8", "::/128"),
	spans("a loopback", "127.0.0.0/8", "::1/128"),
	spans("a private", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10"),
	spans("a shared (carrier-grade NAT)", "100.64.0.0/10"),
	spans("a link-local", "169.254.0.0/16", "fe80::/10"),
	spans("a multicast", "224.0.0.0/4", "ff00::/8"),
	spans("a cloud platform's", "168.63.129.16/32"), // Azure's host agent: a public address that is local in fact
	spans("a benchmarking", "198.18.0.0/15", "2001:2::/48"),
	spans("a documentation", "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20"),
	spans("a reserved", "192.0.0.0/24", "192.88.99.0/24", "240.0.0.0/4", "2001::/23"),
)

var (
	globalUnicast = netip.MustParsePrefix("2000::/3") // all that IANA has allocated; the rest is reserved
	nat64         = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour     = netip.MustParsePrefix("2002::/16")
	teredo        = netip.MustParsePrefix("2001::/32")
)

// refusal returns why addr must not be dialled ("a private", "a loopback", …), or "" if it is a public address. An IPv6 address
// that embeds an IPv4 one, to which a gateway would forward, is judged by the IPv4 address.
func refusal(addr netip.Addr) string {
	addr = addr.WithZone("").Unmap() // a Prefix contains no address with a zone
	if !addr.IsValid() {
		return "an invalid"
	}
	if inner := embedded(addr); inner != nil {
		for _, v4 := range inner {
			if kind := refusal(v4); kind != "" {
				return kind
			}
		}
		return ""
	}
	for _, s := range refusedSpans {
		if s.prefix.Contains(addr) {
			return s.kind
		}
	}
	if addr.Is6() && !globalUnicast.Contains(addr) {
		return "a reserved"
	}
	return ""
}

// embedded returns the IPv4 addresses embedded in addr, nil if none.
func embedded(addr netip.Addr) []netip.Addr {
	b := addr.As16()
	v4 := func(at int, flip byte) netip.Addr {
		return netip.AddrFrom4([4]byte{b[at] ^ flip, b[at+1] ^ flip, b[at+2] ^ flip, b[at+3] ^ flip})
	}
	switch {
	case nat64.Contains(addr):
		return []netip.Addr{v4(12, 0)}
	case sixToFour.Contains(addr):
		return []netip.Addr{v4(2, 0)}
	case teredo.Contains(addr): // the server, and the client with its bits inverted
		return []netip.Addr{v4(4, 0), v4(12, 0xff)}
	}
	return nil
}
