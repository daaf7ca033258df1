// A row is written as two characters: its values as digits, the first the lowest, are a number n,
// and the characters are n / 91 and n % 91, counted from '#'.
#include "ggml/grids.h"

#include <string_view>

namespace qlora {
namespace {

template <std::size_t kRows, std::size_t kValues, std::size_t kDigits>
constexpr Grid<kRows, kValues> Unpack(const std::array<std::int8_t, kDigits>& digits,
                                      std::string_view text) {
  Grid<kRows, kValues> grid{};
  for (std::size_t r = 0; r < kRows; ++r) {
    std::size_t n = static_cast<std::size_t>((text[2 * r] - '#') * 91 + text[2 * r + 1] - '#');
    for (std::int8_t& value : grid[r]) {
      value = digits[n % kDigits];
      n /= kDigits;
    }
  }
  return grid;
}

constexpr std::array<std::int8_t, 3> kIq2Digits = {8, 25, 43};
constexpr std::array<std::int8_t, 8> kIq3XxsDigits = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr std::array<std::int8_t, 8> kIq3SDigits = {1, 3, 5, 7, 9, 11, 13, 15};
constexpr std::array<std::int8_t, 3> kIq1Digits = {-1, 0, 1};

// clang-format off
constexpr std::string_view kIq2XxsRows =
    R"(###%#'#)#+#-#/#5#7#;#=#?#A#G#M#Q#S#Y#[#a#m#u#w#}$&$4$R$^$j$l%#%G%a%c%i%s%u%{%}&&&2&<&>&D&P)"
    R"(&V&X&\&h&v'/'1';'S'U'g(*(<(B(F(H(N(Z(^(`(f(h)#);)S*0*:+%+'+-+7+?+Q+]+c+g+u+{,,,>,F,P-%-/-a)"
    R"(-g-s-w.(.<.f/+/M/[0D0F0L0^0z191=2&2T3%3'3-3C3S3[3]444<4l4n5c5e5k5}606X6t7-828J8V9+:N;';);/)"
    R"(;5;9;;;A;G;O;S;];_;e;w<.<J<R<V<n<v=3=;=E=c=i=u>>>N>d>n?O@F@H@N@`@dA;AeAiAsBPBpC'C-C1C7C9C])"
    R"(CcC{D:DhESFHFJFbGQGwHFHPHVHvIWJ8K+K1KCK[KyLFM#MAMeMiNdNfO9PdS)S+S1SESaS}T.T:TzUgUiUoUsV&V8)"
    R"(V\V|WCWYWmX$XJYAZ>[-[3[?[E[s\.\V]5]g]{^*_'a%aQc-cOced(drewhniC)";
constexpr std::string_view kIq2XsRows =
    R"(###%#'#)#+#-#/#1#3#5#7#9#;#?#A#C#E#G#I#K#M#Q#S#Y#[#]#_#c#e#i#k#u#w#y#{#}$$$&$($*$,$.$4$6$8)"
    R"($:$>$@$F$L$P$R$X$j$l$n$p$t$v$|%+%-%3%7%E%M%a%c%e%g%i%k%m%o%s%u%{%}&$&&&*&,&.&2&<&>&D&V&X&Z)"
    R"(&\&`&b&h&r&t&z')'1'M'O'U'c'g'i(*(B(D(F(H(J(L(N(T(X(^(`(f(l(x)/)7)9);)A)S)o)u*.*@*F*r*v+%+')"
    R"(+)+++-+/+1+3+7+9+?+A+C+E+I+K+Q+Y+[+]+c+u+w+y+{,$,&,,,6,8,>,P,\,^,l,n,p,t-+-=-a-c-e-g-k-m-s)"
    R"(-}.$.(.*.6.<.X.Z.`.r/M/Y/o0D0F0L0N0^0j1#191=1k2T3#3%3'3)3+3-3/31373A3C3I3[3m3w3y4$464<4L4l)"
    R"(5%5G5_5c5e5k5{5}6X6t7#7C7O7_8@8D8J8L8V8l9%939m9y:6:B:h:l:n;';);+;-;/;1;3;5;9;;;A;C;E;G;I;K)"
    R"(;M;S;W;];_;e;w;y;{;}<&<(<.<8<:<@<R<V<f<n<p<v<x=+=-=c=e=g=i=m=o=s=u>$>&>,>>>J>Z>\>b>n>t?E?O)"
    R"(?W?m?s@F@H@N@`@d@l@tA;AEAYA_AoB4C'C)C+C-C1C3C9C?CCCECKC]CyC{D&D*D8D:DnE1EcEeEgEmEwF$F6F@FR)"
    R"(FZF`G5G;GcH(H>HFHRHbHjI1IMIWIYJlK)K+K1KCKOKWKcKwKyM)M7MUMeMsNdNvNzOKPHP|QSR8RZRbS)S+S-S/S3)"
    R"(S5S;SCSESGSMS_SaSwSyS{S}T$T(T:TDTJTpU'UKUMU]UcUgUiUoUqUsV&V8VHV\VzWMWaX,XHXNX^XtY#Y%Y;YCZH)"
    R"(ZjZpZx['[+[-[3[E[S[c[{\4\P]?]S]g]k^*^0^6^v_A_C_o`na;aabBbbc+c-c1c3c=cEcsdFdLdndrdtdxe1eMe_)"
    R"(f(fPh*h>hRh\h^hbi7i=iCiyi{jNjPjvk+)";
constexpr std::string_view kIq2SRows =
    R"(###%#'#)#+#-#/#1#3#5#7#9#;#?#A#C#E#G#I#K#M#Q#S#U#W#Y#[#]#_#c#e#k#o#s#u#w#y#{#}$$$&$($,$.$4)"
    R"($6$8$:$>$@$B$D$F$J$L$P$R$X$Z$\$b$d$j$l$n$p$t$v$|%)%+%-%/%1%3%7%E%I%M%Q%Y%a%c%e%g%i%k%m%o%s)"
    R"(%u%w%y%{%}&$&&&(&*&,&.&0&2&4&6&<&>&@&B&D&H&J&N&P&V&X&Z&\&^&`&b&d&f&h&l&n&r&t&v&x&z&|'#'%'))"
    R"('+'1'3'5'7';'='C'M'O'Q'S'U'Y'g'k'm'q's'y(((*(0(B(D(F(H(L(N(P(R(T(X(\(^(`(b(d(f(h(j(l(p(r(x)"
    R"((|)))7)9);)A)C)E)G)K)S)W)Y)])_)e)o)w*.*8*:*B*F*H*R*t+%+'+)+++-+/+1+3+7+9+;+?+A+C+E+I+K+M+O)"
    R"(+Q+S+U+W+[+]+_+c+g+i+m+o+u+w+y+{+},$,&,(,*,,,.,0,2,6,8,:,<,>,@,B,D,H,J,P,R,T,V,Z,\,l,n,r,t)"
    R"(,x-#-%-+-/-5-7-G-I-O-a-c-e-g-k-m-o-q-s-w-y-}.$.&.(.*.,...0.4.6.<.>.@.B.F.H.N.X.Z.\.^.`.b.d)"
    R"(.f.j.l.r.t.v.x.|/#/)/3/5/;/M/Q/S/W/Y/_/i/k/q0(0B0D0F0H0J0L0P0R0V0^0`0b0d0h0j0p0z0|191;1=1?)"
    R"(1C1E1K1U1W1]1m2(22282J2X3%3'3)3+3/313335373;3?3A3C3I3K3M3U3[3c3g3u3w3y4$4&4(4.46484:4@4B4H)"
    R"(4R4T4Z4l4t5%5)5+5/555M5O5_5c5e5g5i5k5o5q5u5w5}6$6&6(6,6.646>6@6F6X6\6^6b6d6j6t6v6|7/737O7Q)"
    R"(7W7i7y8D8H8N8P8`8b8h9'999;9=9C9}:8:D:`:l:n;';);+;-;/;1;3;5;7;9;;;=;A;C;E;G;I;K;M;O;Q;S;U;W)"
    R"(;];_;e;i;k;o;q;w;y;{;}<&<(<*<,<.<0<2<8<:<<<><@<B<D<F<J<L<R<T<V<X<\<^<d<n<p<v<x<z<|='=-=1=3)"
    R"(=7=9=?=I=K=c=e=g=i=k=m=o=q=s=u=w=y={>$>&>(>*>,>.>0>2>6>8>>>@>B>D>H>J>P>Z>\>^>`>b>d>f>h>l>n)"
    R"(>t>v>x>z?#?%?+?3?5?7?=?O?Q?S?U?Y?[?a?k?m?s@*@@@F@H@L@N@P@R@T@X@Z@`@b@d@f@j@l@rA#A)A;A=A?AA)"
    R"(AEAGAMAWAYA_AqB$B2B4B:BLC'C)C+C-C1C3C5C7C9C;C=C?CCCECGCICKCMCOCQCUCWC]C_CaCcCgCiCyC{C}D$D&)"
    R"(D(D*D,D0D2D8D:D<D>DBDDDJDTDVD\DnDrDtDxDzE%E/E1E7EGEIEeEgEiEkEmEoEqEsEwEyF$F&F(F*F.F0F6F@FB)"
    R"(FHFZF\F^F`FdFfFlFvFxG#G5GQGSGYGgGkHFHHHJHLHPHRHXHbHdHjHrH|I=I?IEIWJ2JBJlK%K)K+K-K1K3K5K7K;)"
    R"(K=KCKGKIKMKOKUKaKgKyK{K}L$L(L*L0L:L<LBLTLdLrLxM/M=M]MeMiMkMoMqMwN&N(N.N@N\N^NdNvO#O3OAOQP8)"
    R"(PHPJPPPxQ1Q=QWRPR|S)S+S-S/S3S5S9S;S?SESGSMSOSQSSSWS_ScSiSkS{S}T&T(T*T,T.T2T4T:T<T>T@TDTFTV)"
    R"(TXT^TnTpTtTxTzT|U1U3U9UgUiUkUmUoUqUsUuUyV&V(V*V,V0V2V8VBVDVJV\V^V`VbVfVhVnVxVzW%W7W?WSWUW[)"
    R"(WkWmXHXLXRXTXdXfXlY7Y?YAYYYoZHZ^Z`Zl[#[+[-[1[3[5[7[9[?[E[G[I[K[O[Q[W[a[c[i[{\$\*\,\<\>\D\L)"
    R"(\r\t\z]1]c]g]i]k]m]q]s]y^(^*^0^B^P^^^`^f^x_G_K_S_s`(`J`L`R```da=a?aaaebtc+c/c3c7c?cEcGcIcO)"
    R"(cuc{d<dRdtdze+e/e1eOeSeUeeeiekeqf(fJfXf^fngyhRhbi9igi{j<j>jHjJjNjrk+)";
constexpr std::string_view kIq3XxsRows =
    R"(###%#'#,#.#2#3#5#<#E#^#`#d#f#k#m#t#x#{#}$)$4$@$H$J$L$Q$X$Z$a$c$g$q$w%*%.%4%5%7%B%e%x&1&6&A)"
    R"(&M&O&S&Y&l&|'T'k($(((*(?(M(](_(d(f(m(o(t(v(x)()))A)C)J)Q)S*'*)*.*0*7*>*`*f*h*v+$+1+A+L+P+s)"
    R"(,@,D,V,i,u-g-u.:.<.C.E.J.L.P.S.\.{.}/$/'/)/0/7/R/V/W/_/a/h/n/o/q0#0$010E0L0P0|1%1F1T1l2%2/)"
    R"(2J34363A3X3t3{3}4)4+4@4M4R4X4Z4h4q4|5#5>5@5E5R5g5w6+6=6z7.7A7G7M7Y7t888J8_9,9A9U9`9n9p9|:%)"
    R"(:r;+;:;;;K;Q;b<%<D<i<t=:=H=]>O>R>T>b?9?P?g?o?u@*@A@`@nA3A;AdB&B1B5BXB`BwCkD<DJD|E1E3EAE^F#)"
    R"(FAFfG/G5G{HAHfI<IdIrJIJKJMJNJ`JpKAKKKuL5L:LPL]LkM%MFMVMuMwN.Nr)";
constexpr std::string_view kIq3SRows =
    R"(###$#%#(#*#+#,#-#/#1#3#4#8#>#C#E#H#J#L#N#S#U#\#_#b#c#d#e#g#k#l#p#s#v#z#|$%$,$9$=$B$H$I$M$O)"
    R"($P$S$V$Y$]$`$d$j$m$o$q$s%%%(%0%6%:%=%?%F%H%K%Q%U%W%d%f%j%m%x%|&#&&&,&2&5&;&J&T&V&b&d&h&m&s)"
    R"(&w&y'-'2'='@'B'P'a'p'w'y'{(,(.(2(7(D(H(\(](^(`(d(e(g(i(k(l(n(u(x(z)-)/)2);)A)B)D)G)I)M)R)Y)"
    R"()\)b)i)k)y*$*&*0*3*5*6*:*@*F*I*S*V*`*g*j*m*n*q*w*}+#+'+,+=+C+N+P+U+W+d+f+m+q+s+w,1,8,;,A,H)"
    R"(,J,Y-%-)-,-9-;-V-X-]-_-f-r-v.,.2.:.;.=.?.A.B.D.F.H.K.M.Q.R.T.[.]._.b.d.q.r.u.w.z.|/'/*/./1)"
    R"(/4/8/;/A/H/`/c/f/p/r/w0#0%0/030=0@0D0F0I0M0V0X0]0_0f0l0z1*10191<1C1F1J1c1f1m1r1{2-2.292F2N)"
    R"(2P2U2_2{3$383<3I3K3V3[3u3|4#4%4'4*4143454:4<4?4A4K4Q4Y4[4]4d4i4k4x5-575;5=5G5M5W5Y5e6#6*6.)"
    R"(6365696:6C6E6I6O6]6e6k6p6t6{71777;7H7O7Q7\7a7k7u8'8:8M8m8o8|9#9.9Q9U9[9a9e9h9k9r9y:.:8:=:?)"
    R"(:A:H:N:S:Y:_:c:w:y;#;(;,;6;;;J;M;S;_;d;f;k;m;t;x<@<B<T<_<`<y=*=,=6=W=p>&>:>R>W>b>m>s?1?7?;)"
    R"(?A?O?S?V?Y?e?k?p?r?t?y@%@.@N@T@]@g@l@rA$A;A@AAAPA]AbAnAtAzA}B.B8BDBhBtC,C.CeD*D,D:DqDsDuE&)"
    R"(E(E=EME]EdF&F<FNFTF_FdFjFrG#G(G7GlGzH.H<H?HXHlI&IAIjIlJFJJJMJVJXJdJfJrJxK-K4K?KNKPKlKoKsKy)"
    R"(K|L(L9LRLjLmL{M6M:M@MEM]N,N<N\NsO?)";
constexpr std::string_view kIq1Rows =
    R"(###%#'#)#+#-#0#5#7#;#=#B#H#J#L#T#Y#[#_#a#f#k#m#q#s#w#x$#$%$'$)$*$/$5$9$;$?$A$E$G$I$K$L$S$Y)"
    R"($[$]$e$j$l$p$r$w$|%#%'%)%.%4%:%?%C%E%G%K%M%O%R%U%W%Y%]%_%j%l%n%v%|&'&-&1&5&6&E&K&Q&W&Y&Z&[)"
    R"(&c&e&g&o&q&u&y&z&{&}'#'$'&'('*','.'0'2';'>'@'B'D'F'G'H'J'X'\'h'j'p'r't'v'y'z(#(%(+(1(3(7(B)"
    R"((D(H(J(O(T(V(Z(\(a(g(k(s(x(z)#)%)*)/)1)5)7)<)B)D)H)M)N)T)\)])`)f)h)l)x)z)|*#*)*.*0*4*6*;*@)"
    R"(*B*F*H*M*S*Y*\*_*d*f*h*j*l*q*v*x*|+#+-+.+0+4+9+:+@+B+H+L+N+R+T+U+X+d+f+h+m+p+v+x+z+|,#,%,')"
    R"(,),-,/,3,9,=,>,?,@,A,B,C,E,G,K,S,[,],c,e,u,w,y-&-+-0-2-6-8-:-<-@-B-J-P-R-T-\-b-f-h-m-n-p-q)"
    R"(-t-x-}.%.&.'.).+.-.../.1.5.7.9.?.C.E.H.I.K.L.M.O.Q.R.U.Y.[._.a.c.d.e.g.i.k.m.o.q.s.u.v.w.|)"
    R"(.}/#/$/%/'/(/*/,/-/./0/2/4/5/6/8/:/;/</>/?/@/B/C/D/F/H/N/P/Q/R/Z/[/\/^/`/d/h/j/k/l/n/p/r/u)"
    R"(/v/w/x/{/}0#0%0&0'0-0003050=0A0M0Q0Y0_0a0c0e0g0k0m0o0p0q0s0u0w0}1(1*141B1D1F1J1L1O1V1W1X1Z)"
    R"(1^1`1a1b1d1e1f1j1n1v1y1z1|2#2'2+2-262=2D2F2M2O2Q2S2U2W2Y2]2a2c2i2o2s2v3%3'3+3-3237393;3=3?)"
    R"(3D3J3P3S3V3[3]3a3c3h3m3o3q3s3u3z4%4'4+4148494=4C4E4G4I4K4L4M4U4Z4_4a4g4m4r4t4v4y5#5%5)5+50)"
    R"(565:5<5B5H5M5O5Q5T5Y5[5_5a5f5n5p5r5x6%6&6'6)6-6/6163696A6G6I6M6P6S6_6e6k6q6s6w6y6}7$7%7(7,)"
    R"(7.707:7<7?7@7B7D7F7H7J7L7R7W7Y7^7d7j7p7v7{7|8'8,8.828:8D8F8J8L8Q8V8X8\8^8c8i8k8u8z8|9%9'91)"
    R"(9397999A9D9F9J9P9Z9\9`9b9h9j9l9n9t9y:#:%:*:+:0:2:6:8:B:D:H:J:O:U:Y:[:a:f:h:l:n:s:x:z;#;%;*)"
    R"(;0;4;<;H;L;N;P;R;T;V;X;h;l;o;s;w;x;z;|<#<'<)<*<+<-</<3<5<;<=<?<A<C<D<E<G<H<M<O<Q<S<U<W<[<])"
    R"(<_<d<e<f<q<w<y<{=(=.=8=:=>=B=F=O=T=^=d=p=s=|>'>)>+>->/>0>1>6>7>9>;>=>?>C>E>G>I>K>P>Q>W>Z>[)"
    R"(>]>a>c>e>f>g>i>k>o>s>u>w>x>y>{>}?#?%?&?'?(?)?,?.?/?0?2?6?7?8?:?>?@?A?B?D?E?J?L?N?P?S?V?[?\)"
    R"(?^?`?b?d?h?j?l?n?p?s?t?u?w?x?z@#@%@'@+@.@2@6@7@=@?@A@I@O@R@V@[@b@g@i@m@o@s@u@w@yA$A*A,A.A0)"
    R"(A6A<A?A@ACADAGAHAJANAPARAVAZA^A`AaAbAcAdAfAhAjAlAmApAvAxA|B#B$B%B)B+B-B/B?BOBQBSBYB[B]BaBe)"
    R"(BsB}C(C*C+C,C.C2C4C8C:C<C@CBCFCHCLCNCOCPCRCXCZCbCdCjClCoCpCtCvC|D#D$D%D'D)D*D+D,D-D/D3D4D5)"
    R"(D7D9D;D<D=D?DADBDCDDDEDFDGDHDIDKDMDNDODQDUDWD]D_D`DaDcDeDiDmDoDsDyD{E$E&E(E0E2E6E8E:E;E<E>)"
    R"(EBEDEMERETEVEYEZE^EgEhEnEpEqErEsEtEwEzE|F#F%F'F(F)F+F,F-F.F0F1F2F3F4F5F7F8F9F:F;F=F?FEFGFI)"
    R"(FKFLFMFOFRFTFUFYF[F\F]F^F_FaFcFdFeFfFgFhFjFkFmFoFpFqFsFuFvFwFxFyFzF{F|G#G$G%G&G'G(G)G*G+G,)"
    R"(G-G/G0G1G2G3G4G6G8G9G<G=G>G?GAGBGCGDGEGHGJGKGLGNGPGQGRGSGUGVGWGZG\G]G_G`GbGcGdGeGfGgGhGiGl)"
    R"(GoGpGqGrGsGtGuGvGwGxGyGzG{G|H#H%H&H)H-H/H0H1H2H3H5H8H<H?HAHBHCHDHIHJHKHMHOHSHUHYH`HeHgHiHk)"
    R"(HmHnHoHpHqHsHuHvHwI#I(I*I,I.I0I4I:I=I>I@IDIFIHIIIJILIRIXIZI[I\I^I`IaIbIcIdIeIfIgIhIjIlImIn)"
    R"(IpIsIvIyI|J#J$J%J&J'J-J5J8J?JCJDJHJIJKJQJSJTJWJZJ[J\J]JaJcJeJgJiJpJsJuJvJwJyJ{K,K4K6K8K>KF)"
    R"(KLKPKQKRKTKVKXKZK\K_KlKtKzK|L#L%L)L+L1L2L5L7L=L@LCLFLGLILOLPLSLWL\L_LaLgLkLmLyL}M$M/M0M4M<)"
    R"(M=M>MAMNMTMXM`MoMpMrMsMvMxM|N#N%N'N)N+N-N/N1N2N3N5N6N7N9N;NCNDNGNINKNLNMNNNONQNSNUNYN_NaNc)"
    R"(NeNhNiNkNyNzN{N}O$O%O'O(O)O+O.O0O1O2O4O;O=O>O@OCODOFOGOJOLOMONOSOXO^OcOhOiOjOlOpOrOtOvOxOy)"
    R"(OzO{O}P#P'P)P,P.P0P4P8P:P;P<P>PAPCPFPUPWP]PcPmPoPsPuP{Q&Q,Q1Q9Q>Q@QFQJQPQRQTQVQXQYQ\Q]Q^Qb)"
    R"(QdQeQfQhQjQnQrQuQvQ{R%R+R-R.R1R=RARBRORQRURWR[R]R_RcRdRgRnRuRxRzS%S)S+S/S1S;S=SASCSHSMSNSP)"
    R"(SRSTSZS_SaSeSgSlSqSsSwSyT#T)T+T-T/T5T;T=TATCTETGTHTITJTOTQTSTYT\TaTcTeTkTpTrTvTxT}U'U)U-U/)"
    R"(U:U<U@UFUKUMUQUSUXU]U_UcUeUrUvV'V)V0V3V7V9V;V?VMVQV]VcVgViVmVsVuVwVxV{V}W&W(W)W*W,W-W2W3W4)"
    R"(W6W8W:W<W>W@WBWDWFWNW\W`WbWhWnWpWtWuWvWzW}X#X%X)X,X1X7X>XBXHXJXNXPXUXZX\X`XbXdXgXmXoXsXyX|)"
    R"(Y#Y%Y)Y+Y0Y5Y7Y;Y=YBYCYHYJYLYTYZY\Y^Y`YbYdYfYjYlYnYxZ'Z)Z/Z4Z6Z:Z<ZAZFZHZLZNZSZYZ[Z]ZjZlZp)"
    R"(ZrZwZ|[#['[)[.[4[8[9[:[@[F[J[L[R[T[V[^[_[d[j[l[n[p[v[|\#\%\'\)\-\/\1\3\5\7\9\;\?\D\E\G\H\I)"
    R"(\K\O\Q\Y\[\a\c\e\i\k\m\o\u\{\}]&],]4]6]8]:]<]>]@]H]J]P]X]Z]e]h]j]l]p]t]v^#^'^/^1^3^4^5^6^7)"
    R"(^9^:^;^=^E^G^M^N^O^Q^U^[^]^a^c^e^f^g^i^j^k^m^p^s^v^w^y^{^|^}_$_&_'_(_)_*_+_,_-_._0_2_3_4_6)"
    R"(_9_<_>_B_C_D_E_F_H_I_J_L_N_P_R_T_V_\_`_c_e_j_l_r_t_u_x_y_{_|`#`)`+`0`1`5`6`9`:`;`C`E`G`M`W)"
    R"(`Y`_`e`i`m`o`q`r`u`y`za(a.a2a4a:aBaDaFaHaJaLaNaPaQaRaTaVaZa\a^a`abadafagahajanapaqatavaxb#)"
    R"(b%b'b+b-b1b9bBbKbSbUbWbYb]b_bcbobubwbxbyc+c-c1c3c8c=c?cCcEcJcPcRcTcVcacccgcicncscucyc{d%d()"
    R"(d+d-d/d1d2dAdCdFdIdKdMdOdQd[d`dbdedgdtdxdzd{e'e+e/e1e6e<e@eBeHeMeOeSeUeZe_eaeeegexf#f)f+f1)"
    R"(f4f5f7f9f;f>f?f@fAfGfcfefgfifkfmfufwf{f}g(g*g+g,g.g4g8g:g<g=g>g@gDgFgHgXg^gbgegggjgrgtgwgz)"
    R"(g|g}h#h&h(h4h8h<h=h?hBhDhFhJhLhPhRh\h^hbhdhohqhshui%i'i+i-i2i7i9i=i?iDiLiPiSiVi\idihilinir)"
    R"(itj$j)j6j8j<j>jHjJjNjPj[j]j_jljnjrjtjyk#k%k)k+)";
// clang-format on

}  // namespace

constinit const Grid<256, 8> kIq2XxsGrid = Unpack<256, 8>(kIq2Digits, kIq2XxsRows);
constinit const Grid<512, 8> kIq2XsGrid = Unpack<512, 8>(kIq2Digits, kIq2XsRows);
constinit const Grid<1024, 8> kIq2SGrid = Unpack<1024, 8>(kIq2Digits, kIq2SRows);
constinit const Grid<256, 4> kIq3XxsGrid = Unpack<256, 4>(kIq3XxsDigits, kIq3XxsRows);
constinit const Grid<512, 4> kIq3SGrid = Unpack<512, 4>(kIq3SDigits, kIq3SRows);
constinit const Grid<2048, 8> kIq1Grid = Unpack<2048, 8>(kIq1Digits, kIq1Rows);

}  // namespace qlora
