// Package httpsyntax defines the valid methods and URLs of a request of a task of type http, and the valid trace contexts that a
// task carries. Package queue and the program enqueue reject by it what is enqueued, and package outbound what any program has
// put into Redis. They therefore reject the same requests, with the same words.
//
// No reason quotes a URL or a part of it, since that may contain a password or a key.
//
// Its exported names may change in any version.
package httpsyntax

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// example is the URL that messages show instead of the URL at fault.
const example = "https://api.example.com/charge"

// ParseURL parses the URL of a request. The host of the result is in ASCII: any other name is
// converted with IDNA's lookup profile, so that the name that is checked, resolved and dialled is
// the same. fault is what is wrong and what to write instead, "" if the URL is valid.
func ParseURL(text string) (u *url.URL, fault string) {
	if text == "" {
		return nil, "missing; write an absolute URL such as " + example
	}
	if !utf8.ValidString(text) {
		return nil, "not valid UTF-8; write other bytes as %XX"
	}
	if fault := rawFault(text); fault != "" {
		return nil, fault
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, "not a valid URL (not shown here, it may hold a password or a key)"
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, "must begin with http:// or https://"
	case u.Hostname() == "" || u.Opaque != "":
		return nil, "has no host; write an absolute URL such as " + example
	}
	host, fault := Host(u.Hostname())
	if fault != "" {
		return nil, "its host " + fault
	}
	port := u.Port()
	if n, err := strconv.ParseUint(port, 10, 16); port != "" && (err != nil || n == 0) {
		return nil, "its port is not between 1 and 65535"
	}
	if host != u.Hostname() { // an IPv6 address keeps its spelling
		if port != "" {
			host += ":" + port
		}
		u.Host = host
	}
	return u, ""
}

var rawChars = map[rune]string{' ': "a space", '"': "a quote", '\'': "an apostrophe", '\\': "a backslash"}

// rawFault finds characters that no URL contains unescaped (RFC 3986 section 2), and those that servers of other protocols take
// for the end of a word. To such a server a request line may be a command.
func rawFault(text string) string {
	at := 0
	for _, r := range text {
		at++
		what := rawChars[r]
		switch {
		case what != "":
		case unicode.IsControl(r):
			what = "a control character"
		case unicode.IsSpace(r):
			what = "a space that is not ASCII"
		default:
			continue
		}
		return fmt.Sprintf("%s at position %d; leave it out, or behind the host write it as %s", what, at, url.PathEscape(string(r)))
	}
	return ""
}

// Host returns a host in the form in which it is resolved and compared: an IP address as it is written, a name in ASCII. IPv6
// addresses have no brackets. fault follows "its host" in a sentence, "" if the host is valid.
func Host(host string) (ascii, fault string) {
	if addr, err := netip.ParseAddr(host); err == nil {
		if zone := addr.Zone(); zone != "" && !validName(zone) {
			return "", "has a zone that is not an interface's name"
		}
		return host, ""
	}
	ascii, ok := toASCII(host)
	_, notAddress := netip.ParseAddr(ascii)
	switch {
	case !ok:
		return "", "is not a name that IDNA allows"
	case notAddress == nil:
		return ascii, ""
	case !validName(ascii):
		return "", "has a part that is not 1 to 63 letters, digits, - and _"
	case oddEnd(ascii):
		return "", "is a number, which some systems read as an IP address; write four decimal numbers, such as 192.0.2.1"
	}
	return ascii, ""
}

// toASCII returns a name in ASCII, and false if IDNA does not allow the name. A name in ASCII stays
// as it is. Of such a name, only labels with the prefix of punycode are checked: they must be valid
// punycode. IDNA's lookup profile would reject underscores, and hyphens as in r3---sn-1.
func toASCII(host string) (string, bool) {
	if strings.IndexFunc(host, func(r rune) bool { return r > unicode.MaxASCII }) >= 0 {
		ascii, err := idna.Lookup.ToASCII(host)
		return ascii, err == nil && utf8.ValidString(host)
	}
	for label := range strings.SplitSeq(host, ".") {
		if len(label) >= 4 && strings.EqualFold(label[:4], "xn--") {
			if _, err := idna.Lookup.ToASCII(label); err != nil {
				return "", false
			}
		}
	}
	return host, true
}

// validName reports whether s looks like a host name in ASCII.
func validName(s string) bool {
	s = strings.TrimSuffix(s, ".")
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || strings.ContainsFunc(label, outsideName) {
			return false
		}
	}
	return len(s) <= 253
}

func outsideName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
}

// oddEnd reports whether a name that is no address to netip ends in a number: 2130706433, 0x7f000001, 0177.0.0.1 and 127.1 are loopback to
// some systems' resolvers and unknown names to others.
func oddEnd(s string) bool {
	s = strings.ToLower(strings.TrimSuffix(s, "."))
	last := s[strings.LastIndexByte(s, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}
