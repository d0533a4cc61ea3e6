from django.urls import path

from webapp.accounts.views import account, audit, invitations, passwords, people, teams

app_name = "accounts"
urlpatterns = [
    path("account/", account.me, name="me"),
    path("account/edit/", account.edit, name="me-edit"),
    path("account/password/", account.password, name="me-password"),
    path("account/sessions/end/", account.end_sessions, name="me-end-sessions"),
    path("people/", people.person_list, name="person-list"),
    path("people/<int:pk>/", people.person_detail, name="person-detail"),
    path("people/<int:pk>/deactivate/", people.person_deactivate, name="person-deactivate"),
    path("people/<int:pk>/activate/", people.person_activate, name="person-activate"),
    path("people/<int:pk>/unlock/", people.person_unlock, name="person-unlock"),
    path("people/<int:pk>/password/", people.reset_link, name="person-password"),
    path("people/roles/<int:pk>/", people.member_role, name="member-role"),
    path("people/roles/<int:pk>/remove/", people.member_remove, name="member-remove"),
    path("teams/", teams.team_list, name="team-list"),
    path("teams/new/", teams.team_create, name="team-create"),
    path("teams/<int:pk>/", teams.team_edit, name="team-edit"),
    path("invitations/", invitations.invitation_list, name="invitation-list"),
    path("invitations/new/", invitations.invitation_create, name="invitation-create"),
    path("invitations/<int:pk>/revoke/", invitations.invitation_revoke, name="invitation-revoke"),
    path("join/<str:token>/", invitations.invitation_accept, name="invitation-accept"),
    path("password/", passwords.PasswordResetView.as_view(), name="password-forgotten"),
    path("password/sent/", passwords.password_sent, name="password-sent"),
    path("password/set/<uidb64>/<token>/", passwords.PasswordSetView.as_view(), name="password-set"),
    path("password/done/", passwords.password_done, name="password-done"),
    path("audit/", audit.audit_list, name="audit-list"),
    path("audit/<int:pk>/", audit.audit_detail, name="audit-detail"),
    path("audit/export.<str:kind>", audit.audit_export, name="audit-export"),
]
